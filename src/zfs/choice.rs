//! Full, incremental or differential: what each would cost, and which is taken. A pure decision.
//!
//! The newest common base is nearly always right, and nothing else is asked about then. It is wrong where the chain
//! has grown so long that a restore takes for ever, or where so much changed that going on costs more than it saves.

use super::output::Version;

/// A chain that grew longer is not gone on with (backups, the new one included), unless the policy says otherwise.
const LONGEST_CHAIN: usize = 100;
/// Nor one whose restore would read so many times what a full one does (and takes more than [`SHORT`]).
const HEAVIEST_CHAIN: u64 = 3;
/// What each further backup of a chain adds to a restore (seconds): its start, and `zfs receive`'s own.
const LINK: f64 = 2.0;
/// A restore is rare and a backup is daily: what a second of it weighs.
const RESTORE_WEIGHT: f64 = 0.1;
/// Costs below this are not worth a thought (seconds).
const SHORT: f64 = 30.0;
/// Another base than the newest must save this part of the cost, and [`SHORT`].
const WORTH: f64 = 0.2;

/// One way to send a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Where the stream starts; `None` for a full one.
    pub base: Option<Version>,
    /// Flags of `zfs send`: those of the chain that it goes on with.
    pub flags: Vec<String>,
    /// Backups to restore then, this one included.
    pub links: usize,
    /// Bytes of the streams that it stands on.
    pub below: u64,
    /// Bytes of the full backup that it stands on; 0 for a full one.
    pub full_bytes: u64,
    /// When the snapshot of that full backup was made, in seconds since 1970.
    pub full_creation: i64,
    /// About how many bytes it would be, once that was asked.
    pub bytes: Option<u64>,
}

impl Offer {
    /// Bytes that a restore would read.
    pub fn restore_bytes(&self) -> Option<u64> {
        Some(self.below.saturating_add(self.bytes?))
    }

    /// Seconds until it is sent.
    pub fn send_time(&self, rates: Rates) -> Option<f64> {
        Some(self.bytes? as f64 / rates.send)
    }

    /// Seconds until it is restored.
    pub fn restore_time(&self, rates: Rates) -> Option<f64> {
        Some(self.restore_bytes()? as f64 / rates.restore + self.links as f64 * LINK)
    }

    /// What it costs in all, in seconds.
    pub fn cost(&self, rates: Rates) -> Option<f64> {
        Some(self.send_time(rates)? + RESTORE_WEIGHT * self.restore_time(rates)?)
    }
}

/// How fast this repository was, in bytes of stream a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Away.
    pub send: f64,
    /// Back.
    pub restore: f64,
}

/// What a person decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// `--max-chain`: backups of a chain, the full one included.
    pub max_chain: Option<usize>,
    /// `--full-every`, in seconds.
    pub full_every: Option<i64>,
}

/// What is done, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Which of the offers.
    pub index: usize,
    /// For a person: what follows after "because".
    pub reason: String,
}

/// Why an offer may not be taken, if so. `creation` is that of the snapshot.
pub fn objection(offer: &Offer, policy: Policy, rates: Rates, creation: i64) -> Option<String> {
    offer.base.as_ref()?;
    let longest = policy.max_chain.unwrap_or(LONGEST_CHAIN);
    if offer.links > longest {
        return Some(format!("the chain would have {} backups, more than {longest}", offer.links));
    }
    if let Some(every) = policy.full_every
        && creation.saturating_sub(offer.full_creation) >= every
    {
        return Some("the chain's full backup is older than --full-every".to_owned());
    }
    let heavy =
        offer.restore_bytes().is_some_and(|bytes| bytes > offer.full_bytes.max(1).saturating_mul(HEAVIEST_CHAIN));
    if policy.max_chain.is_none() && heavy && offer.restore_time(rates).is_some_and(|time| time > SHORT) {
        return Some(format!("a restore would read more than {HEAVIEST_CHAIN} times the chain's full backup"));
    }
    None
}

/// Whether the first offer is so cheap that no other can matter.
pub fn is_settled(first: &Offer, policy: Policy, rates: Rates, creation: i64) -> bool {
    objection(first, policy, rates, creation).is_none() && first.cost(rates).is_none_or(|cost| cost < SHORT)
}

/// Decides. `offers`: the newest common base first, then older ones, then the full one.
pub fn choose(offers: &[Offer], policy: Policy, rates: Rates, creation: i64) -> Choice {
    let objections: Vec<Option<String>> =
        offers.iter().map(|offer| objection(offer, policy, rates, creation)).collect();
    let Some(first) = objections.iter().position(Option::is_none) else {
        return Choice { index: offers.len().saturating_sub(1), reason: "nothing else is possible".to_owned() };
    };
    let usual = match (&objections[0], offers[first].base.is_some()) {
        (None, true) => "it is the newest common base".to_owned(),
        (None, false) => "there is no common base".to_owned(),
        (Some(objection), _) => objection.clone(),
    };
    let Some(cost) = offers[first].cost(rates).filter(|cost| *cost >= SHORT) else {
        return Choice { index: first, reason: usual };
    };
    let allowed = (first + 1..offers.len()).filter(|index| objections[*index].is_none());
    let costs = allowed.filter_map(|index| Some((index, offers[index].cost(rates)?)));
    match costs.min_by(|(_, a), (_, b)| a.total_cmp(b)) {
        Some((index, other)) if cost - other >= SHORT && cost - other >= WORTH * cost => {
            let what = if offers[index].base.is_some() { "an older base" } else { "a new chain" };
            Choice {
                index,
                reason: format!(
                    "{what} costs {:.0} % less, sending and restoring taken together",
                    (1.0 - other / cost) * 100.0
                ),
            }
        }
        _ => Choice { index: first, reason: usual },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zfs::names::VersionKind;

    const MB: u64 = 1_000_000;
    const RATES: Rates = Rates { send: 10e6, restore: 10e6 };
    const NO_POLICY: Policy = Policy { max_chain: None, full_every: None };

    fn offer(name: &str, links: usize, below: u64, bytes: u64) -> Offer {
        let base = Version { kind: VersionKind::Snapshot, name: name.into(), guid: 1, createtxg: 1, creation: 0 };
        let base = (!name.is_empty()).then_some(base);
        let full_bytes = if base.is_some() { 1000 * MB } else { 0 };
        Offer { base, flags: vec![], links, below, full_bytes, full_creation: 0, bytes: Some(bytes) }
    }

    fn chosen(offers: &[Offer], policy: Policy) -> (usize, String) {
        let Choice { index, reason } = choose(offers, policy, RATES, 1000);
        (index, reason)
    }

    #[test]
    fn the_newest_common_base_unless_something_speaks_against_it() {
        let usual = [offer("b", 3, 1200 * MB, 10 * MB), offer("a", 2, 1000 * MB, 200 * MB), offer("", 1, 0, 1000 * MB)];
        assert_eq!(chosen(&usual, NO_POLICY), (0, "it is the newest common base".into()));
        assert!(is_settled(&usual[0], NO_POLICY, RATES, 0), "cheap: no other estimate is needed");
        assert_eq!(chosen(&usual[2..], NO_POLICY), (0, "there is no common base".into()));
        let unknown = [Offer { bytes: None, ..usual[0].clone() }, usual[2].clone()];
        assert_eq!(chosen(&unknown, NO_POLICY).0, 0);
    }

    #[test]
    fn limits_of_the_policy_and_of_reason() {
        let long = [offer("b", 101, 1200 * MB, MB), offer("a", 2, 1000 * MB, 100 * MB), offer("", 1, 0, 1000 * MB)];
        let (index, reason) = chosen(&long, NO_POLICY);
        assert!(index == 1 && reason.contains("101 backups"), "{reason}");
        let short = Policy { max_chain: Some(1), ..NO_POLICY };
        assert_eq!(chosen(&long, short).0, 2);
        assert_eq!(chosen(&long, Policy { max_chain: Some(101), ..NO_POLICY }).0, 0);
        let old = Policy { full_every: Some(1000), ..NO_POLICY };
        assert_eq!(chosen(&long[1..], old), (1, "the chain's full backup is older than --full-every".into()));
        assert_eq!(chosen(&long[1..], Policy { full_every: Some(1001), ..NO_POLICY }).0, 0);
        let heavy = [offer("b", 50, 2999 * MB, 10 * MB), offer("", 1, 0, 1000 * MB)];
        assert!(chosen(&heavy, NO_POLICY).1.contains("3 times"));
        assert_eq!(
            chosen(&heavy, Policy { max_chain: Some(60), ..NO_POLICY }).0,
            0,
            "a limit that was set replaces ours"
        );
    }

    #[test]
    fn another_way_is_taken_only_when_it_saves_much() {
        // Nearly everything changed: going on sends as much as a new chain, and makes restores longer.
        let rewritten = [offer("a", 3, 1900 * MB, 1000 * MB), offer("", 1, 0, 1000 * MB)];
        assert_eq!(chosen(&rewritten, NO_POLICY).0, 0, "saves 14 % only");
        let rewritten = [offer("a", 30, 1990 * MB, 1000 * MB), offer("", 1, 0, 700 * MB)];
        let (index, reason) = chosen(&rewritten, NO_POLICY);
        assert!(index == 1 && reason.starts_with("a new chain costs "), "{reason}");
    }
}
