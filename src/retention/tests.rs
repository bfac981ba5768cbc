//! What must hold of every policy and every history, made up by the dozen.

use proptest::prelude::*;

use super::*;

const DAY: i64 = 86_400;
const NOW: i64 = 20_000 * DAY;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

/// A full backup for each time, in order.
fn items(times: &[i64]) -> Vec<Item> {
    let item = |(place, time): (usize, &i64)| Item {
        group: 0,
        order: (place as u64 + 1, 0),
        time: at(*time),
        base: None,
        complete: true,
        condemned: false,
        pinned: false,
    };
    times.iter().enumerate().map(item).collect()
}

fn stay(policy: &Policy, items: &[Item]) -> Vec<usize> {
    let reasons = policy.decide(items, at(NOW));
    (0..items.len()).filter(|index| !reasons[*index].is_empty()).collect()
}

#[test]
fn one_a_day_and_the_newest_of_each() {
    let times: Vec<i64> = (0..40).map(|n| NOW - 40 * DAY / 4 + n * DAY / 4).collect();
    let policy = Policy { daily: 3, ..Policy::default() };
    assert_eq!(stay(&policy, &items(&times)), [31, 35, 39]);
    assert_eq!(stay(&Policy { last: 2, ..Policy::default() }, &items(&times)), [38, 39]);
    let within = Some(SignedDuration::from_hours(24));
    assert_eq!(stay(&Policy { within, ..Policy::default() }, &items(&times)), [35, 36, 37, 38, 39]);
}

#[test]
fn a_clock_that_jumped_evicts_nothing() {
    let good: Vec<i64> = (0..7).map(|n| NOW - (10 - n) * DAY).collect();
    let policy = Policy { daily: 7, ..Policy::default() };
    for wild in [0, NOW + 400 * DAY, NOW - 5000 * DAY] {
        // Wild ones on many days, all at the end.
        let times: Vec<i64> = good.iter().copied().chain((0..20).map(|n| wild + n * DAY)).collect();
        let kept = stay(&policy, &items(&times));
        assert!((0..7).all(|index| kept.contains(&index)), "{wild}: {kept:?}");
    }
}

#[test]
fn a_pruning_machine_with_a_wrong_clock_evicts_nothing() {
    let times: Vec<i64> = (0..7).map(|n| NOW - (10 - n) * DAY).collect();
    let policy = Policy { daily: 7, within: Some(SignedDuration::from_hours(24 * 7)), ..Policy::default() };
    for now in [0, NOW - 8 * DAY, NOW + 9000 * DAY] {
        let reasons = policy.decide(&items(&times), at(now));
        assert!(reasons.iter().all(|reasons| !reasons.is_empty()), "{now}: {reasons:?}");
    }
}

#[test]
fn what_was_condemned_goes_unless_it_is_needed() {
    let mut items = items(&[NOW - 3 * DAY, NOW - 2 * DAY, NOW - DAY]);
    (items[0].condemned, items[1].condemned) = (true, true);
    items[2].base = Some(1);
    assert_eq!(stay(&Policy { last: 9, ..Policy::default() }, &items), [1, 2]);
}

fn any_policy() -> impl Strategy<Value = Policy> {
    let counts = (0..4u32, 0..4u32, 0..4u32, 0..4u32, 0..3u32, 0..3u32, proptest::option::of(0..900i64));
    counts.prop_map(|(last, hourly, daily, weekly, monthly, yearly, within)| Policy {
        last,
        hourly,
        daily,
        weekly,
        monthly,
        yearly,
        within: within.map(SignedDuration::from_hours),
    })
}

fn any_time() -> impl Strategy<Value = i64> {
    prop_oneof![8 => NOW - 60 * DAY..NOW, 1 => 0..NOW, 1 => NOW..NOW + 900 * DAY]
}

fn any_items() -> impl Strategy<Value = Vec<Item>> {
    let one = (0..3usize, 0..40u64, any_time(), any::<u16>(), 0..20u8);
    proptest::collection::vec(one, 1..50).prop_map(|rows| {
        let mut items: Vec<Item> = Vec::new();
        for (place, (group, sequence, time, base, dice)) in rows.into_iter().enumerate() {
            let base = (place > 0 && dice % 4 != 0).then(|| usize::from(base) % place);
            let complete = dice != 1 && base.is_none_or(|base| items[base].complete);
            let (condemned, pinned) = (dice == 2, dice == 3);
            let base = base.filter(|_| complete);
            items.push(Item { group, order: (sequence, 0), time: at(time), base, complete, condemned, pinned });
        }
        items
    })
}

proptest! {
    #[test]
    fn nothing_is_orphaned_and_the_newest_stay(policy in any_policy(), items in any_items()) {
        let kept = stay(&policy, &items);
        for index in &kept {
            prop_assert!(items[*index].base.is_none_or(|base| kept.contains(&base)));
        }
        for group in 0..3 {
            let newest = items.iter().enumerate().filter(|(_, item)| item.group == group && item.complete);
            let newest = newest.max_by_key(|(index, item)| (item.order, *index));
            prop_assert!(newest.is_none_or(|(index, _)| kept.contains(&index)));
        }
        for (index, item) in items.iter().enumerate() {
            prop_assert!(item.complete && !item.pinned || kept.contains(&index));
        }
    }

    #[test]
    fn a_more_generous_policy_keeps_a_superset(policy in any_policy(), more in any_policy(), items in any_items()) {
        let generous = Policy {
            last: policy.last + more.last,
            hourly: policy.hourly + more.hourly,
            daily: policy.daily + more.daily,
            weekly: policy.weekly + more.weekly,
            monthly: policy.monthly + more.monthly,
            yearly: policy.yearly + more.yearly,
            within: policy.within.max(more.within),
        };
        let kept = stay(&generous, &items);
        prop_assert!(stay(&policy, &items).iter().all(|index| kept.contains(index)));
    }

    /// The new ones are dated as they like; an honest clock would have given each of them one of the days that went by.
    #[test]
    fn wild_clocks_take_no_more_days_than_went_by(
        wild in proptest::collection::vec(any_time(), 0..60), daily in 1..9u32, gap in 0..9i64,
    ) {
        let good: Vec<i64> = (0..10).map(|n| NOW - (gap + 10 - n) * DAY).collect();
        let policy = Policy { daily, ..Policy::default() };
        let times: Vec<i64> = good.iter().chain(&wild).copied().collect();
        let kept = stay(&policy, &items(&times));
        // The days since the last good one, that day and today among them, which new ones may take.
        let still = i64::from(daily) - gap - 2;
        for back in 0..still.min(9) {
            // The last good one's own day may be taken over by a newer one of that day.
            prop_assert!(kept.contains(&(8 - back as usize)), "{back} {kept:?}");
        }
    }
}
