//! Features of pools: listing them, and turning on those that a pool lacks.

use millpond_api::{ApiError, EventKind, PoolFeature, PoolUpgrade, UpgradePool};
use millpond_engine::{Command, DeviceCommand};
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
        let before = shard.status().await.map_err(|e| ApiError::from(e).during(&during))?.pool.features;
        let lacking = lacking(before);
        let turned_on: Vec<String> = lacking.iter().map(|feature| feature.name.to_owned()).collect();
        let mut now = before;
        if !request.dry_run && !lacking.is_empty() {
            let command = Command::Devices(DeviceCommand::TurnFeaturesOn);
            shard.command(command).await.map_err(|e| ApiError::from(e).during(&during))?;
            now = now.with(FeatureSet::of(lacking));
            let message = format!("pool '{name}' is upgraded: it has the features {}", turned_on.join(", "));
            self.report(Happened::to_pool(EventKind::PoolUpgraded, name, message));
        }
        let features = FEATURES.iter().map(|feature| shown(feature, now)).collect();
        Ok(PoolUpgrade { name: name.to_owned(), format: Label::VERSION, features, turned_on })
    }
}

/// Returns the features that an upgrade turns on.
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

fn shown(feature: &Feature, on: FeatureSet) -> PoolFeature {
    PoolFeature {
        name: feature.name.to_owned(),
        since: feature.since.to_owned(),
        on: on.has(feature),
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
        let on = FeatureSet { compat: 1 << 4, ro_compat: 0, incompat: 2 };
        assert_eq!(names(on), ["spare", "compat:0x10"]);
        assert!(lacking(on).is_empty(), "automatic features are not turned on by an upgrade");
    }
}
