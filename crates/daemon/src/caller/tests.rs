//! Tasks have callers.

use millpond_api::CallerKind;

use super::*;

#[tokio::test]
async fn a_task_has_the_caller_that_it_was_given() {
    assert_eq!(current(), None);
    let root = Caller { kind: CallerKind::Unix, name: "root".to_owned(), uid: Some(0), pid: None, process: None };
    let caller = Arc::new(root);
    let seen = scope(Some(Arc::clone(&caller)), async {
        let passed_on = shared();
        let alone = tokio::spawn(async { current() }).await.expect("a task");
        let with = tokio::spawn(scope(passed_on, async { current() })).await.expect("a task");
        (current(), alone, with)
    });
    assert_eq!(seen.await, (Some(Caller::clone(&caller)), None, Some(Caller::clone(&caller))));
    assert_eq!(current(), None);
}
