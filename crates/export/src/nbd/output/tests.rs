//! Batches: order, partial sends, recycling.

use millpond_block::{Buf, PAGE};

use super::*;

fn data(fill: u8, pieces: &[usize]) -> IoSlices {
    pieces
        .iter()
        .map(|&len| {
            let mut buf = Buf::zeroed(len);
            buf.bytes_mut().fill(fill);
            BufSlice::new(buf, 0..len)
        })
        .collect()
}

fn filled() -> (Output, Vec<u8>) {
    let mut output = Output::default();
    output.push(&[1; 16]);
    output.push(&[2; 16]);
    output.push_data(data(3, &[10, 0, 20]));
    output.push(&[]);
    output.push(&[4; 16]);
    output.push_data(data(5, &[7]));
    let whole = [vec![1; 16], vec![2; 16], vec![3; 30], vec![4; 16], vec![5; 7]].concat();
    (output, whole)
}

fn content(batch: &SendBatch) -> Vec<u8> {
    batch.slices().flatten().copied().collect()
}

#[test]
fn small_replies_share_a_slice() {
    let (mut output, whole) = filled();
    assert_eq!(output.unsent(), whole.len());
    let batch = output.lend().expect("a batch");
    assert_eq!(batch.slices().map(<[u8]>::len).collect::<Vec<_>>(), [32, 10, 20, 16, 7]);
    assert_eq!(content(&batch), whole);
}

#[test]
fn partial_sends_go_on_where_they_stopped() {
    let mut pool = BufPool::default();
    for first in 0..=85 {
        for second in [0, 1, 16, 40] {
            let (mut output, whole) = filled();
            let batch = output.lend().expect("a batch");
            assert!(output.lend().is_none(), "one at a time");
            output.push(&[6; 3]);
            output.take_back(batch, first, &mut pool);
            assert_eq!(output.unsent(), whole.len() - first + 3);
            let mut rest = whole.get(first..).expect("within").to_vec();
            if !rest.is_empty() {
                let batch = output.lend().expect("the rest");
                assert_eq!(content(&batch), rest);
                assert_eq!(batch.slices().count(), batch.slice_count());
                let n = second.min(rest.len());
                rest.drain(..n);
                output.take_back(batch, n, &mut pool);
            }
            if !rest.is_empty() {
                let batch = output.lend().expect("the rest of the rest");
                assert_eq!(content(&batch), rest);
                output.take_back(batch, rest.len(), &mut pool);
            }
            let batch = output.lend().expect("what came meanwhile");
            assert_eq!(content(&batch), [6; 3]);
            output.take_back(batch, 3, &mut pool);
            assert_eq!(output.unsent(), 0);
            assert!(output.lend().is_none());
        }
    }
}

#[test]
fn sent_buffers_go_back_to_the_pool_unless_shared() {
    let mut pool = BufPool::default();
    let mut output = Output::default();
    let shared = data(1, &[PAGE]);
    let owned = data(2, &[PAGE]);
    let address = owned.first().map(|piece| piece.bytes().as_ptr());
    output.push_data(shared.clone());
    output.push_data(owned);
    let batch = output.lend().expect("a batch");
    let len = batch.len();
    output.take_back(batch, len, &mut pool);
    let taken = pool.take(PAGE);
    assert_eq!(Some(taken.bytes().as_ptr()), address);
    assert_eq!(pool.take(PAGE).bytes(), [0; PAGE], "the shared one was not given");
    assert!(shared.iter().all(|piece| piece.bytes().iter().all(|byte| *byte == 1)));
}

#[test]
fn a_long_list_does_not_stay_in_memory() {
    let mut pool = BufPool::default();
    let mut output = Output::default();
    output.push(&vec![0; 10 * KEPT_HEAD]);
    let batch = output.lend().expect("a batch");
    output.take_back(batch, 10 * KEPT_HEAD, &mut pool);
    assert!(output.spare.as_ref().is_some_and(|batch| batch.head.capacity() <= KEPT_HEAD));
}

#[test]
#[should_panic(expected = "more bytes sent than there were")]
fn sending_too_much_is_a_broken_loop() {
    let (mut output, whole) = filled();
    let batch = output.lend().expect("a batch");
    output.take_back(batch, whole.len() + 1, &mut BufPool::default());
}
