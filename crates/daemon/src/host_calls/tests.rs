//! A call that hangs costs one thread, and its callers wait no longer than their limit.

use std::sync::mpsc;

use super::*;

fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(future)
}

#[test]
fn a_call_that_hangs_is_not_repeated_and_delays_no_other_path() {
    let (free, hold) = mpsc::channel::<()>();
    run(async {
        let calls = HostCalls::default();
        let (hung, good) = (Path::new("/hung"), Path::new("/good"));
        let short = Duration::from_millis(20);
        let stuck = calls.call(hung, short, move |_| hold.recv().is_ok()).await;
        assert_eq!(stuck.expect_err("it hangs").path, hung);
        // while it hangs, a second call does not begin, and calls with other paths work
        let (begun, count) = mpsc::channel();
        let again = calls.call(hung, short, move |_| begun.send(()).is_ok()).await;
        assert!(again.expect_err("still").silent >= short);
        assert!(count.try_recv().is_err(), "a second thread was spent on a device that hangs");
        assert_eq!(calls.call(good, PATIENCE, |path| path.to_owned()).await.as_deref(), Ok(good));
        // after it has returned, calls with its path work again
        free.send(()).expect("the call waits");
        assert_eq!(calls.call(hung, PATIENCE, |_| 7).await, Ok(7));
    });
}

#[test]
fn calls_that_hang_are_so_many_at_most() {
    let (free, hold) = mpsc::channel::<()>();
    let hold = Arc::new(Mutex::new(hold));
    run(async {
        let calls = HostCalls::at_most(2);
        let short = Duration::from_millis(20);
        for path in ["/a", "/b"] {
            let hold = Arc::clone(&hold);
            let hung = calls.call(Path::new(path), short, move |_| hold.lock().is_ok_and(|hold| hold.recv().is_ok())).await;
            assert!(hung.is_err());
        }
        let (begun, count) = mpsc::channel();
        assert!(calls.call(Path::new("/c"), short, move |_| begun.send(()).is_ok()).await.is_err());
        assert!(count.try_recv().is_err(), "a third thread was spent");
        free.send(()).expect("one waits");
        free.send(()).expect("the other one, too");
        assert_eq!(calls.call(Path::new("/c"), PATIENCE, |_| 7).await, Ok(7));
    });
}

#[test]
fn a_call_that_panics_does_not_block_its_path() {
    run(async {
        let calls = HostCalls::default();
        assert!(calls.call(Path::new("/a"), PATIENCE, |_| panic!("as a test")).await.is_err());
        assert_eq!(calls.call(Path::new("/a"), PATIENCE, |_| 1).await, Ok(1));
    });
}
