//! Bytes of a stream: what is written is read again; what is damaged, cut or swapped is refused.

use super::*;

fn frames(bytes: &[u8]) -> Result<Vec<Frame>, StreamError> {
    let (mut reader, _) = FrameReader::new(bytes)?;
    let mut frames = Vec::new();
    loop {
        let frame = reader.frame()?;
        frames.push(frame.clone());
        if frame == Frame::End {
            return Ok(frames);
        }
    }
}

#[test]
fn a_stream_is_read_as_it_was_written() {
    let mut rng = Random::new(1);
    for compression in [VolumeCompression::Off, VolumeCompression::Lz4, VolumeCompression::Zstd] {
        let states = history(&mut rng, 3);
        let bytes = stream(None, &states, compression, (0, 0));
        let (_, head) = FrameReader::new(&bytes[..]).expect("a head");
        assert_eq!(head.snapshots, states.iter().map(|state| state.snapshot.clone()).collect::<Vec<_>>());
        let mut blocks: Vec<u8> = Vec::new();
        for frame in frames(&bytes).expect("frames") {
            match frame {
                Frame::Snapshot(index, _) => blocks.resize(states[index].blocks.len(), 0),
                Frame::Data(offset, bytes) => {
                    for (n, block) in bytes.chunks(BLOCK as usize).enumerate() {
                        blocks[(offset / BLOCK) as usize + n] = block[0];
                    }
                }
                Frame::Zero(offset, length) => {
                    let from = (offset / BLOCK) as usize;
                    blocks[from..from + (length / BLOCK) as usize].fill(0);
                }
                Frame::Complete(index) => assert_eq!(blocks, states[index].blocks),
                Frame::Head(_) | Frame::End => {}
            }
        }
    }
}

#[test]
fn compressed_data_is_smaller_in_the_stream() {
    let mut rng = Random::new(2);
    let states = history(&mut rng, 1);
    let size = |compression| stream(None, &states, compression, (0, 0)).len();
    let plain = size(VolumeCompression::Off);
    assert!(size(VolumeCompression::Lz4) < plain / 2 && size(VolumeCompression::Zstd) < plain / 2);
}

#[test]
fn any_changed_byte_and_any_cut_is_found() {
    let states = history(&mut Random::new(3), 2);
    let bytes = stream(None, &states, VolumeCompression::Lz4, (0, 0));
    assert!(frames(&bytes).is_ok());
    for at in 0..bytes.len() {
        let mut wrong = bytes.clone();
        wrong[at] ^= 0x10;
        assert!(frames(&wrong).is_err(), "byte {at}");
        let cut = frames(&bytes[..at]).expect_err("a cut");
        assert!(matches!(cut, StreamError::Cut(_) | StreamError::Magic | StreamError::Empty), "cut at {at}: {cut}");
    }
}

#[test]
fn frames_of_another_stream_are_refused() {
    let (one, two) = (history(&mut Random::new(4), 1), history(&mut Random::new(5), 1));
    let (one, two) = (stream(None, &one, VolumeCompression::Off, (0, 0)), stream(None, &two, VolumeCompression::Off, (0, 0)));
    // the last frame is 32 bytes; that of another stream has the right form
    let mut mixed = one[..one.len() - 32].to_vec();
    mixed.extend(&two[two.len() - 32..]);
    assert!(matches!(frames(&mixed), Err(StreamError::Damaged { .. })));
}

#[test]
fn a_later_version_and_other_files_are_named() {
    let mut later = stream(None, &history(&mut Random::new(6), 1), VolumeCompression::Off, (0, 0));
    later[12] = 2;
    assert!(matches!(frames(&later), Err(StreamError::Version(2))));
    assert!(matches!(frames(b""), Err(StreamError::Empty)));
    assert!(matches!(frames(&[0; 4096]), Err(StreamError::Magic)));
}

/// Builds a stream by hand: its writer checks no order.
fn built(head: &StreamHead, build: impl FnOnce(&mut FrameWriter<Vec<u8>>) -> io::Result<()>) -> Vec<u8> {
    let mut out = FrameWriter::new(Vec::new(), head).expect("memory");
    build(&mut out).expect("memory");
    out.end().expect("memory")
}

#[test]
fn frames_out_of_order_or_bounds_are_refused() {
    let states = history(&mut Random::new(7), 2);
    let bytes = stream(None, &states, VolumeCompression::Off, (0, 0));
    let (_, head) = FrameReader::new(&bytes[..]).expect("a head");
    let size = states[0].snapshot.size;
    let block = vec![7; BLOCK as usize];
    type Build<'a> = Box<dyn FnOnce(&mut FrameWriter<Vec<u8>>) -> io::Result<()> + 'a>;
    let wrong: Vec<(&str, Build<'_>)> = vec![
        ("data before a snapshot", Box::new(|out| out.data(0, &block))),
        ("a snapshot that is not there", Box::new(|out| out.snapshot(2, 0))),
        ("beyond the end", Box::new(|out| out.snapshot(0, 0).and_then(|()| out.data(size, &block)))),
        ("an overflow", Box::new(|out| out.snapshot(0, 0).and_then(|()| out.data(u64::MAX - 4095, &block)))),
        ("a part of a block", Box::new(|out| out.snapshot(0, 0).and_then(|()| out.data(512, &block)))),
        ("backwards", Box::new(|out| out.snapshot(0, 0).and_then(|()| out.zero(BLOCK, BLOCK)).and_then(|()| out.zero(0, BLOCK)))),
        ("nothing", Box::new(|out| out.snapshot(0, 0).and_then(|()| out.data(0, &[])))),
        ("an end inside", Box::new(|out| out.snapshot(0, 0))),
        ("a missing snapshot", Box::new(|out| out.snapshot(0, 0).and_then(|()| out.complete(0)))),
        ("the end of another snapshot", Box::new(|out| out.snapshot(0, 0).and_then(|()| out.complete(1)))),
        (
            "a second start in the middle",
            Box::new(|out| {
                out.snapshot(0, 0)?;
                out.complete(0)?;
                out.snapshot(1, BLOCK)
            }),
        ),
    ];
    for (what, build) in wrong {
        let error = frames(&built(&head, build)).expect_err(what);
        assert!(matches!(error, StreamError::Damaged { .. }), "{what}: {error}");
    }
}

#[test]
fn heads_that_make_no_sense_are_refused() {
    let states = history(&mut Random::new(8), 2);
    let bytes = stream(None, &states, VolumeCompression::Off, (0, 0));
    let (_, head) = FrameReader::new(&bytes[..]).expect("a head");
    assert!(head.check().is_ok());
    let wrong = |change: &dyn Fn(&mut StreamHead)| {
        let mut head = head.clone();
        change(&mut head);
        matches!(head.check(), Err(StreamError::Head(_)))
    };
    assert!(wrong(&|head| head.snapshots.clear()));
    assert!(wrong(&|head| head.snapshots[0].name = "a/b".to_owned()));
    assert!(wrong(&|head| head.snapshots[0].name = String::new()));
    assert!(wrong(&|head| head.snapshots[0].name = "receiving".to_owned()));
    assert!(wrong(&|head| head.snapshots[0].size = 0));
    assert!(wrong(&|head| head.snapshots[0].size = 512));
    assert!(wrong(&|head| head.snapshots[0].size = 1 << 61));
    assert!(wrong(&|head| head.snapshots[1].name = head.snapshots[0].name.clone()));
    assert!(wrong(&|head| head.snapshots[1].identity = head.snapshots[0].identity.clone()));
    assert!(wrong(&|head| head.base = Some(head.snapshots[0].clone())));
}
