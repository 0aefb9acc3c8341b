//! Subcommands of `pool`.

use clap::Subcommand;
use millpond_api::client::Client;
use millpond_api::failure::Outcome;

use super::{
    advise, checkpoints, create, destroy, device_limit, devices, import, iostat, jobs, plan, publish, rebalance, scrub, show, upgrade, wipe,
};

/// Verbs.
#[derive(Debug, Subcommand)]
#[command(after_help = "Example:\n  millpond pool create tank /srv/a.img:20G /srv/b.img:20G\n  millpond pool status -v tank")]
pub enum Pool {
    Create(create::Create),
    List(show::List),
    Status(show::Status),
    Show(show::Show),
    Get(show::Get),
    Set(show::Set),
    Export(import::Export),
    Import(import::Import),
    Destroy(destroy::Destroy),
    Iostat(iostat::Iostat),
    Jobs(jobs::Jobs),
    Checkpoints(checkpoints::Checkpoints),
    Add(devices::Add),
    Replace(devices::Replace),
    Remove(devices::Remove),
    DeviceLimit(device_limit::DeviceLimit),
    Rebalance(rebalance::Rebalance),
    Scrub(scrub::Scrub),
    Wipe(wipe::Wipe),
    Upgrade(upgrade::Upgrade),
    Advise(advise::Advise),
    Plan(plan::Plan),
    Publish(publish::Publish),
    Publications(publish::Publications),
    Unpublish(publish::Unpublish),
}

impl Pool {
    pub async fn run(self, client: &Client) -> Outcome {
        match self {
            Pool::Create(create) => create.run(client).await,
            Pool::List(list) => list.run(client).await,
            Pool::Status(status) => status.run(client).await,
            Pool::Show(show) => show.run(client).await,
            Pool::Get(get) => get.run(client).await,
            Pool::Set(set) => set.run(client).await,
            Pool::Export(export) => export.run(client).await,
            Pool::Import(import) => import.run(client).await,
            Pool::Destroy(destroy) => destroy.run(client).await,
            Pool::Iostat(iostat) => iostat.run(client).await,
            Pool::Jobs(jobs) => jobs.run(client).await,
            Pool::Checkpoints(checkpoints) => checkpoints.run(client).await,
            Pool::Add(add) => add.run(client).await,
            Pool::Replace(replace) => replace.run(client).await,
            Pool::Remove(remove) => remove.run(client).await,
            Pool::Rebalance(rebalance) => rebalance.run(client).await,
            Pool::Scrub(scrub) => scrub.run(client).await,
            Pool::Wipe(wipe) => wipe.run(client).await,
            Pool::Upgrade(upgrade) => upgrade.run(client).await,
            Pool::Plan(plan) => plan.run(client).await,
            Pool::Advise(advise) => advise.run(client).await,
            Pool::DeviceLimit(limit) => limit.run(client).await,
            Pool::Publish(publish) => publish.run(client).await,
            Pool::Publications(publications) => publications.run().await,
            Pool::Unpublish(unpublish) => unpublish.run().await,
        }
    }
}
