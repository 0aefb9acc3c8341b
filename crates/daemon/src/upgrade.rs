//! Features of pools: listing them, and turning on those that a pool lacks.

use millpond_api::{ApiError, EventKind, PoolFeature, PoolUpgrade, UpgradePool};
use millpond_engine::{Command, DeviceCommand, Reply};
use millpond_format::{FEATURES, Feature, FeatureSet, Label};

use super::events::Happened;
use super::service::Daemon;

impl Daemon {
    /// Turns on every feature that this version knows and the pool lacks, or reports them. Durable
    /// on return: every label names them.
    ///
    /// # Errors
    /// When there is no such pool, it is read-only, or its labels cannot be written.
    pub async fn upgrade_pool(&self, name: &str, request: UpgradePool) -> Result<PoolUpgrade, ApiError> {
        let during = format!("cannot upgrade pool '{name}'");
        let shard = self.shard(name)?;
        let status = shard.status().await.map_err(|e| ApiError::from(e).during(&during))?;
        let (mut named, mut in_force) = (status.pool.named_features, status.pool.features);
        let mut turned_on = FeatureSet::of(lacking(named));
        if !request.dry_run && (!turned_on.is_empty() || in_force != named) {
            let command = Command::Devices(DeviceCommand::TurnFeaturesOn);
            let reply = shard.command(command).await.map_err(|e| ApiError::from(e).during(&during))?;
            // the engine decides which features it turned on: they may have been on before
            let Reply::TurnedOn(on) = reply else { return Err(ApiError::internal("the engine answers something else").during(during)) };
            turned_on = on;
            named = named.with(on);
            in_force = named;
        }
        let turned_on = names(turned_on);
        if !request.dry_run && !turned_on.is_empty() {
            let message = format!("pool '{name}' is upgraded: it has the features {}", turned_on.join(", "));
            self.report(Happened::to_pool(EventKind::PoolUpgraded, name, message));
        }
        let features = FEATURES.iter().map(|feature| shown(feature, named, in_force)).collect();
        Ok(PoolUpgrade { name: name.to_owned(), format: Label::VERSION, features, turned_on })
    }
}

/// Returns the features that an upgrade turns on in a pool whose labels name those of `on`.
fn lacking(on: FeatureSet) -> Vec<&'static Feature> {
    FEATURES.iter().filter(|feature| !feature.automatic && !on.has(feature)).collect()
}

/// Returns the names of the features of a pool. Unknown ones have the numbers of their bits.
pub(super) fn names(on: FeatureSet) -> Vec<String> {
    let known = FEATURES.iter().filter(|feature| on.has(feature)).map(|feature| feature.name.to_owned());
    let unknown = on.without(FeatureSet::of(FEATURES));
    let sets = [("compat", unknown.compat), ("ro_compat", unknown.ro_compat), ("incompat", unknown.incompat)];
    let bits = sets.into_iter().filter(|(_, bits)| *bits != 0).map(|(set, bits)| format!("{set}:{bits:#x}"));
    known.chain(bits).collect()
}

fn shown(feature: &Feature, named: FeatureSet, in_force: FeatureSet) -> PoolFeature {
    PoolFeature {
        name: feature.name.to_owned(),
        since: feature.since.to_owned(),
        on: named.has(feature),
        in_force: in_force.has(feature),
        automatic: feature.automatic,
        meaning: feature.meaning.to_owned(),
        closes: feature.closes.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_have_names_and_unknown_ones_numbers() {
        let on = FeatureSet { compat: 1 << 4, ro_compat: 0, incompat: 30 };
        assert_eq!(names(on), ["spare", "bases", "forwards", "bucket", "compat:0x10"]);
        assert!(lacking(on).is_empty(), "automatic features are not turned on by an upgrade");
        assert_eq!(names(FeatureSet::of(lacking(FeatureSet::default()))), ["bases", "forwards"]);
    }
}
