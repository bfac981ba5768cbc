//! Which backups stay: a pure decision. It knows no store and no clock but the one that it is given.
//!
//! The order of backups is their writer's, never a clock's. A clock only names buckets (a day, a week), and it is believed
//! only where it fits between the backup before it and now: so the buckets that new backups take are never more
//! than really went by, and no wrong or hostile clock can push an older backup out before its time.

#![warn(missing_docs)]

use std::collections::{BTreeSet, HashMap};

use jiff::civil::Date;
use jiff::{SignedDuration, Timestamp, tz::Offset};

/// How many are kept of what; 0 keeps none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// The newest.
    pub last: u32,
    /// One for each of the newest hours that have any, and so on. All in UTC.
    pub hourly: u32,
    /// Days.
    pub daily: u32,
    /// ISO weeks.
    pub weekly: u32,
    /// Months.
    pub monthly: u32,
    /// Years.
    pub yearly: u32,
    /// All that are no older than this, counted back from the newest of the group.
    pub within: Option<SignedDuration>,
}

/// A backup as far as the decision needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Backups of one group are weighed against one another.
    pub group: usize,
    /// The writer's sequence, then the transaction group: newer is larger.
    pub order: (u64, u64),
    /// What some machine's clock said.
    pub time: Timestamp,
    /// The backup that it can't be restored without, an index into the same list.
    pub base: Option<usize>,
    /// Whether it can be restored. One that can't counts for nothing, and stays.
    pub complete: bool,
    /// An earlier run signed its removal: it goes, unless another needs it.
    pub condemned: bool,
    /// Something else needs it, such as a run that is under way.
    pub pinned: bool,
}

/// How many are kept of a kind of bucket, its name, and the bucket of a time.
type Period = (u32, &'static str, fn(Timestamp) -> String);

/// Why a backup stays. Nothing: it goes.
pub type Reasons = Vec<String>;

impl Policy {
    /// Whether it keeps nothing at all.
    pub fn is_empty(&self) -> bool {
        self.last == 0 && !self.looks_at_times()
    }

    fn looks_at_times(&self) -> bool {
        self.within.is_some() || self.periods().iter().any(|(count, ..)| *count > 0)
    }

    fn periods(&self) -> [Period; 5] {
        [
            (self.hourly, "hourly", |time| time.strftime("%Y-%m-%d %H:00").to_string()),
            (self.daily, "daily", |time| time.strftime("%Y-%m-%d").to_string()),
            (self.weekly, "weekly", |time| {
                let week = date(time).iso_week_date();
                format!("{}-W{:02}", week.year(), week.week())
            }),
            (self.monthly, "monthly", |time| time.strftime("%Y-%m").to_string()),
            (self.yearly, "yearly", |time| time.strftime("%Y").to_string()),
        ]
    }

    /// Decides for all `items`, each with its reasons to stay.
    pub fn decide(&self, items: &[Item], now: Timestamp) -> Vec<Reasons> {
        let mut reasons = vec![Reasons::new(); items.len()];
        let mut groups: HashMap<usize, Vec<usize>> = HashMap::new();
        for (index, item) in items.iter().enumerate() {
            groups.entry(item.group).or_default().push(index);
        }
        for mut group in groups.into_values() {
            group.sort_by_key(|index| (items[*index].order, *index));
            self.decide_group(items, &group, now, &mut reasons);
        }
        for (item, reasons) in items.iter().zip(&mut reasons) {
            if !item.complete {
                reasons.push("its base is missing".to_owned());
            }
            if item.pinned {
                reasons.push("an unfinished backup needs it".to_owned());
            }
        }
        keep_bases(items, &mut reasons);
        reasons
    }

    /// `group`: oldest first.
    fn decide_group(&self, items: &[Item], group: &[usize], now: Timestamp, reasons: &mut [Reasons]) {
        let whole = |index: &usize| items[*index].complete;
        if let Some(newest) = group.iter().rev().copied().find(whole) {
            reasons[newest].push("the newest".to_owned());
        }
        let counted: Vec<usize> =
            group.iter().copied().filter(|index| whole(index) && !items[*index].condemned).collect();
        for (place, index) in counted.iter().rev().take(self.last as usize).enumerate() {
            reasons[*index].push(format!("last {}", place + 1));
        }
        if !self.looks_at_times() {
            return;
        }
        let (believed, doubted) = believe(items, &counted, now);
        let oldest = self.by_time(items, &believed, reasons);
        for index in doubted {
            // Where it belongs is unknown; when all that time keeps is newer, it is old by any clock.
            if oldest.is_none_or(|oldest| items[index].order >= items[oldest].order) {
                reasons[index].push("its clock can't be believed".to_owned());
            }
        }
    }

    /// Keeps by time among `believed`, oldest first. Returns the oldest that stays.
    fn by_time(&self, items: &[Item], believed: &[usize], reasons: &mut [Reasons]) -> Option<usize> {
        let mut kept = BTreeSet::new();
        for (count, name, bucket_of) in self.periods() {
            let (mut last, mut taken) = (None, 0);
            // Believed times never fall, so equal buckets are neighbours.
            for (place, index) in believed.iter().enumerate().rev() {
                let bucket = Some(bucket_of(items[*index].time));
                if taken == count {
                    break;
                }
                if bucket != last {
                    reasons[*index].push(format!("{name} {}", bucket.as_deref().unwrap_or_default()));
                    kept.insert(place);
                    (last, taken) = (bucket, taken + 1);
                }
            }
        }
        if let (Some(within), Some(newest)) = (self.within, believed.last()) {
            for (place, index) in believed.iter().enumerate() {
                if items[*newest].time.duration_since(items[*index].time) <= within {
                    reasons[*index].push("recent".to_owned());
                    kept.insert(place);
                }
            }
        }
        kept.first().map(|place| believed[*place])
    }
}

fn date(time: Timestamp) -> Date {
    Offset::UTC.to_datetime(time).date()
}

/// Those whose times fit between the believed one before and `now`, and the others. The walk begins at the oldest, so
/// that nothing that comes later changes what is believed of an earlier one.
fn believe(items: &[Item], oldest_first: &[usize], now: Timestamp) -> (Vec<usize>, Vec<usize>) {
    let mut latest = Timestamp::MIN;
    oldest_first.iter().copied().partition(|index| {
        let time = items[*index].time;
        let fits = latest <= time && time <= now;
        if fits {
            latest = time;
        }
        fits
    })
}

/// Whatever a backup that stays needs stays too.
fn keep_bases(items: &[Item], reasons: &mut [Reasons]) {
    let mut open: Vec<usize> = (0..items.len()).filter(|index| !reasons[*index].is_empty()).collect();
    while let Some(index) = open.pop() {
        let Some(base) = items[index].base else { continue };
        if reasons[base].is_empty() {
            open.push(base);
        }
        if !reasons[base].iter().any(|reason| reason == BASE) {
            reasons[base].push(BASE.to_owned());
        }
    }
}

/// The reason of a base.
const BASE: &str = "a base of one that stays";

#[cfg(test)]
mod tests;
