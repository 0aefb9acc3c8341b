//! `backup mount`: shows backups as files, to restore one file of a guest.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use clap::{Args, ValueHint};
use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, Generation, INodeNo, LockOwner, MountOption, OpenFlags, ReplyAttr,
    ReplyData, ReplyDirectory, ReplyEntry,
};
use millpond_api::failure::{Failure, Outcome};
use millpond_api::names::SnapshotName;
use millpond_api::path::absolute;
use millpond_backup::{BackupError, BackupImage, Lock, Purpose, Record, Target};
use millpond_daemon::Signals;
use millpond_images::source::{Image, Source};

use super::target::{Empty, Place, blocking, named};

/// Names and sizes never change.
const FOREVER: Duration = Duration::from_secs(3600);
/// Time between looks whether it was unmounted.
const LOOK: Duration = Duration::from_millis(200);

/// Show backups as raw images in a directory, to read single files of a guest
///
/// Each backup is DIR/POOL/VOL/SNAP.raw, read only. It runs until the directory is unmounted, or it gets SIGINT or SIGTERM. The target is
/// not pruned meanwhile.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  millpond backup mount /mnt/nas/backup /mnt/backups &
  losetup --read-only --partscan --find --show /mnt/backups/tank/vm1/monday.raw     prints for example /dev/loop0
  mount -o ro /dev/loop0p1 /mnt/vm1
  cp /mnt/vm1/etc/fstab .
  umount /mnt/vm1 && losetup -d /dev/loop0 && umount /mnt/backups")]
pub struct Mount {
    #[command(flatten)]
    place: Place,
    /// Directory to show them in
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    dir: PathBuf,
    /// POOL/VOL or POOL/VOL@SNAP, or quoted patterns [default: all]
    #[arg(value_name = "words")]
    words: Vec<String>,
}

impl Mount {
    pub async fn run(self) -> Outcome {
        let target = self.place.open(Purpose::Backups, Empty::Refuse).await?;
        let names = named(&self.place, &target, &self.words).await?;
        let shown = Arc::clone(&target);
        let tree = blocking(&self.place, &target, move |target| {
            let (mut tree, lock) = (Tree::default(), target.share(&AtomicBool::new(false))?);
            for (name, record) in names.iter().zip(target.records(&names)) {
                tree.add(name, &record?, &shown, &lock)?;
            }
            Ok(tree)
        })
        .await?;
        let dir = absolute(&self.dir);
        let mut signals = Signals::catch()?;
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("millpond-backup".to_owned()), MountOption::RO, MountOption::NoAtime];
        let at = dir.display().to_string();
        let cannot = |e: std::io::Error| Failure::failed(format!("cannot mount {at}: {e}; give an empty directory, and run it as root"));
        let session = fuser::spawn_mount(tree, &dir, &config).map_err(cannot)?;
        eprintln!("millpond: the backups of {} are in {at}; unmount it, or press Ctrl-C", self.place.name());
        while !session.guard.is_finished() {
            tokio::select! {
                () = signals.next() => {
                    let ended = tokio::task::spawn_blocking(|| session.umount_and_join()).await;
                    let busy = |e: String| Failure::failed(format!("cannot unmount {at}: {e}; unmount what uses it first, then {at}"));
                    return ended.map_err(|e| busy(e.to_string()))?.map_err(|e| busy(e.to_string()));
                }
                () = tokio::time::sleep(LOOK) => {}
            }
        }
        session.join().map_err(|e| Failure::failed(format!("{at} ended: {e}; mount it again")))
    }
}

/// A directory or a file.
struct Node {
    /// Entries by name.
    entries: BTreeMap<String, u64>,
    /// The disk; none in directories.
    image: Option<BackupImage>,
    /// A reader of it, made when it is needed.
    source: Mutex<Option<Box<dyn Source>>>,
    size: u64,
    time: SystemTime,
}

/// Directories of pools and volumes, and files of backups. The inode of a node is its index and 1.
struct Tree(Vec<Node>);

impl Node {
    fn directory() -> Node {
        Node { entries: BTreeMap::new(), image: None, source: Mutex::new(None), size: 0, time: SystemTime::UNIX_EPOCH }
    }
}

impl Default for Tree {
    fn default() -> Tree {
        Tree(vec![Node::directory()])
    }
}

impl Tree {
    fn add(&mut self, name: &SnapshotName, record: &Record, target: &Arc<Target>, lock: &Arc<dyn Lock>) -> Result<(), BackupError> {
        let pool = self.enter(1, &name.of.pool);
        let volume = self.enter(pool, &name.of.volume);
        let file = self.enter(volume, &format!("{}.raw", name.snapshot));
        if let Some(node) = self.node_mut(file) {
            node.image = Some(BackupImage::new(Arc::clone(target), record, lock)?);
            node.size = record.size;
            node.time = SystemTime::from(record.created);
        }
        Ok(())
    }

    /// Returns the inode of an entry, which is made if it is not there.
    fn enter(&mut self, parent: u64, name: &str) -> u64 {
        let next = self.0.len() as u64 + 1;
        let Some(parent) = self.node_mut(parent) else { return 0 };
        let inode = *parent.entries.entry(name.to_owned()).or_insert(next);
        if inode == next {
            self.0.push(Node::directory());
        }
        inode
    }

    fn node_mut(&mut self, inode: u64) -> Option<&mut Node> {
        self.0.get_mut(usize::try_from(inode.checked_sub(1)?).ok()?)
    }

    fn node(&self, inode: INodeNo) -> Option<&Node> {
        self.0.get(usize::try_from(inode.0.checked_sub(1)?).ok()?)
    }

    fn attributes(&self, inode: INodeNo) -> Option<FileAttr> {
        let node = self.node(inode)?;
        let (kind, perm) = if node.image.is_some() { (FileType::RegularFile, 0o400) } else { (FileType::Directory, 0o500) };
        Some(FileAttr {
            ino: inode,
            size: node.size,
            blocks: node.size.div_ceil(512),
            atime: node.time,
            mtime: node.time,
            ctime: node.time,
            crtime: node.time,
            kind,
            perm,
            nlink: 1,
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
            rdev: 0,
            blksize: 1 << 20,
            flags: 0,
        })
    }
}

impl Filesystem for Tree {
    fn lookup(&self, _: &fuser::Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let inode = self.node(parent).zip(name.to_str()).and_then(|(node, name)| node.entries.get(name));
        match inode.and_then(|inode| self.attributes(INodeNo(*inode))) {
            Some(attributes) => reply.entry(&FOREVER, &attributes, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &fuser::Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(inode) {
            Some(attributes) => reply.attr(&FOREVER, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn readdir(&self, _: &fuser::Request, inode: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let Some(node) = self.node(inode) else { return reply.error(Errno::ENOENT) };
        for (index, (name, entry)) in node.entries.iter().enumerate().skip(usize::try_from(offset).unwrap_or(usize::MAX)) {
            let kind = if self.node(INodeNo(*entry)).is_some_and(|node| node.image.is_some()) {
                FileType::RegularFile
            } else {
                FileType::Directory
            };
            if reply.add(INodeNo(*entry), index as u64 + 1, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn read(
        &self,
        _: &fuser::Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let Some((node, image)) = self.node(inode).and_then(|node| Some((node, node.image.as_ref()?))) else {
            return reply.error(Errno::EISDIR);
        };
        let length = u64::from(size).min(node.size.saturating_sub(offset));
        let mut buffer = vec![0; usize::try_from(length).unwrap_or(0)];
        let mut source = node.source.lock().unwrap_or_else(PoisonError::into_inner);
        let opened = match &mut *source {
            Some(source) => Ok(source),
            None => image.open().map(|opened| source.insert(opened)),
        };
        match opened.and_then(|source| source.read(offset, &mut buffer)) {
            Ok(()) => reply.data(&buffer),
            Err(error) => {
                // the reader of the file sees only that it failed
                eprintln!("millpond: a backup cannot be read at byte {offset}: {error}");
                reply.error(Errno::EIO);
            }
        }
    }
}
