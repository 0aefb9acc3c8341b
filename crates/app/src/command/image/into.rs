//! `import-image FILE POOL/VOL --into`: writes the present state of an image into a volume that
//! exists, after a snapshot of it.

use std::path::Path;
use std::sync::Arc;

use millpond_api::client::Client;
use millpond_api::failure::{Failure, Outcome};
use millpond_api::names::VolumeName;
use millpond_api::{Export, Volume};
use millpond_block::SectorProfile;
use millpond_daemon::Signals;
use millpond_images::copy::{Target, Task, copy};
use millpond_images::extended::ExtendedImage;
use millpond_images::sectors::Finding;
use millpond_images::source::Image;
use millpond_images::states::States;

use super::keep::keep;
use super::transient_export::{Total, TransientExport, compared, copy_failure, interruptible, written};
use crate::output::write_out;

/// An import into a volume that exists.
pub struct IntoVolume<'a> {
    /// The image, for messages.
    pub path: &'a Path,
    /// The volume.
    pub name: &'a VolumeName,
    /// Compare both afterwards.
    pub verify: bool,
}

impl IntoVolume<'_> {
    /// Checks that image and volume fit, and copies.
    ///
    /// # Errors
    /// A refusal, before anything is written; then an error of the copy, with the command that
    /// returns the volume to its old state.
    pub async fn import(self, client: &Client, signals: &mut Signals, states: States, finding: &Finding) -> Outcome {
        let volume: Volume = client.get(&format!("/v1/volumes/{}", self.name)).await?;
        let state = states.states.into_iter().next_back().ok_or_else(|| Failure::failed("the image has no disk"))?;
        self.fits(&volume, state.volume_size(), finding)?;
        let image = Arc::new(ExtendedImage { image: state.image, size: volume.size });
        self.unused(client).await?;
        let transient_export = TransientExport::open(client, &self.name.to_string(), false).await?;
        let done = self.update(client, signals, &transient_export, (image, volume.size)).await;
        // the copy's own error says more than that of the clean-up
        let closed = transient_export.close(client).await;
        done.and(closed)
    }

    fn fits(&self, volume: &Volume, needed: u64, finding: &Finding) -> Outcome {
        let (file, name) = (self.path.display(), self.name);
        let during = format!("cannot import {file} into '{name}'");
        if volume.readonly {
            return Err(Failure::failed(format!("{during}: it is read-only; 'millpond set readonly=off {name}' changes that")));
        }
        if needed > volume.size {
            let line =
                format!("{during}: the image needs {needed} bytes, the volume has {}; 'millpond resize {name} {needed}'", volume.size);
            return Err(Failure::failed(format!("{line} makes it larger")));
        }
        // A profile that this version does not know is not judged.
        let profile: Option<SectorProfile> = volume.sector.as_str().parse().ok();
        match (finding.sector, profile) {
            (Some(found), Some(profile)) if found != u64::from(profile.logical()) => {
                let own = if found == 4096 { "4kn" } else { "512e" };
                Err(Failure::failed(format!(
                    "{during}: the disk is made for {found}-byte sectors, and the volume has --sector {profile}; \
                     'millpond convert-sectors {name} {own}' changes the volume, or import to a new one"
                )))
            }
            _ => Ok(()),
        }
    }

    /// Takes the snapshot and writes the blocks that differ.
    async fn update(
        &self,
        client: &Client,
        signals: &mut Signals,
        export: &TransientExport,
        (image, size): (Arc<dyn Image>, u64),
    ) -> Outcome {
        let name = self.name.to_string();
        let kept = keep(client, self.name, "pre-import", "before 'millpond import-image --into'").await?;
        write_out(&format!("{name} is kept as {kept}\n"))?;
        let (from, to) = (self.path.display().to_string(), name.clone());
        let target = Target::Socket(export.socket().to_owned());
        let verify = self.verify.then(|| (Arc::clone(&image), target.clone()));
        let left = "the import is incomplete";
        let mut done = interruptible(format!("import {name}"), (Total::Of(size), written), left, signals, move |progress| {
            copy(&*image, &target, Task::Update, progress).map_err(|e| copy_failure(e, &from, &to))
        })
        .await;
        if let (Ok(()), Some((image, target))) = (&done, verify) {
            let (from, to) = (self.path.display().to_string(), name.clone());
            let left = "the comparison is incomplete";
            done = interruptible(format!("verify {name}"), (Total::Of(size), compared), left, signals, move |progress| {
                copy(&*image, &target, Task::Compare, progress).map_err(|e| copy_failure(e, &from, &to))
            })
            .await;
        }
        done.map_err(|failure| Failure::failed(format!("{failure}; '{name}' may be changed in part, to go back: millpond rollback {kept}")))
    }

    /// Checks that the volume is neither exported nor open in a mount. The daemon allows no second
    /// export that can write, so no guest can begin to use the volume during the import.
    async fn unused(&self, client: &Client) -> Outcome {
        let exports: Vec<Export> = client.get("/v1/exports").await?;
        let name = self.name.to_string();
        for export in exports {
            let id = export.id;
            if export.name == name {
                let clients = if export.clients > 0 { ", and clients are connected" } else { "" };
                let next = format!("shut its guest down and run 'millpond unexport {id}' first");
                return Err(Failure::failed(format!("cannot import into '{name}': it is exported{clients}; {next}")));
            }
            if export.volumes.iter().any(|file| file.name == name && file.clients > 0) {
                let line = format!("cannot import into '{name}': it is open in the mount {}; end its user first", export.address);
                return Err(Failure::failed(line));
            }
        }
        Ok(())
    }
}
