//! Events as lines: for people who read a log, and for programs that read JSON.
//!
//! The JSON fields are documented in `docs/guide/membership.md` and stay: a field may be added, none is renamed
//! or removed. Every line is one object with `time` (RFC 3339, UTC, milliseconds), `event`, and `active`, the
//! size of the group afterwards.

use outlast::membership::{
    Counters, DeathReason, Event, Happening, Health, Instant, Member, MemberInfo, Membership, Path,
    TimedEvent,
};
use serde_json::{Map, Value, json};
use std::time::{SystemTime, UNIX_EPOCH};

/// `2026-11-15T20:57:50.123Z`.
pub(super) fn rfc3339(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, second_of_day) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (second_of_day / 3_600, second_of_day / 60 % 60, second_of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", since.subsec_millis())
}

/// `20:57:50.123`, for people who know which day it is.
pub(super) fn clock_time(time: SystemTime) -> String {
    rfc3339(time)[11..23].to_owned()
}

/// The date that lies `days` days after 1970-01-01, by counting off whole years and months.
fn civil(mut days: u64) -> (u64, u64, u64) {
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let february = 28 + u64::from(leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    (year, month, days + 1)
}

/// A stable word for a reason; its sentence may be reworded, the word not.
pub(super) fn reason_code(reason: DeathReason) -> &'static str {
    match reason {
        DeathReason::Exited => "exited",
        DeathReason::Refused => "refused",
        DeathReason::Silent => "silent",
        DeathReason::SilentTooLong => "silent_too_long",
        DeathReason::StalledTooLong => "stalled_too_long",
        DeathReason::Deaf => "deaf",
        DeathReason::Evicted => "evicted",
        _ => "other",
    }
}

pub(super) fn path_word(path: Path) -> &'static str {
    match path {
        Path::Datagram => "udp",
        Path::Stream => "tcp",
    }
}

fn info_json(info: &MemberInfo) -> Value {
    json!({
        "id": info.id.to_string(),
        "name": info.name,
        "address": info.address.to_string(),
        "meta": String::from_utf8_lossy(&info.meta),
    })
}

/// One event as one JSON object.
pub(super) fn event_json(event: &TimedEvent) -> Value {
    let mut line = Map::new();
    line.insert("time".into(), rfc3339(event.time).into());
    let mut set = |key: &str, value: Value| line.insert(key.into(), value);
    match &event.what {
        Happening::Event(happened) => {
            let word = match happened {
                Event::Joined(_) => "joined",
                Event::Stalled(_) => "stalled",
                Event::Suspected(_) => "suspected",
                Event::Recovered(_) => "recovered",
                Event::Died { .. } => "died",
                Event::Left(_) => "left",
                Event::Rejoined { .. } => "rejoined",
            };
            set("event", word.into());
            if let Some(info) = happened.about() {
                set("member", info_json(info));
            }
            if let Event::Died { reason, .. } | Event::Rejoined { reason, .. } = happened {
                set("reason", reason_code(*reason).into());
                set("reason_text", reason.to_string().into());
            }
            if let Event::Died { accusers, .. } = happened {
                set("accusers", accusers.iter().map(ToString::to_string).collect());
            }
            if let Event::Rejoined { incarnation, since, .. } = happened {
                set("incarnation", (*incarnation).into());
                set("out_seconds", event.at.since(*since).as_secs_f64().into());
            }
        }
        Happening::Lagged(lost) => {
            set("event", "lagged".into());
            set("lost", (*lost).into());
        }
        _ => {
            set("event", "unknown".into());
        }
    }
    set("active", event.active.into());
    Value::Object(line)
}

/// One event as one line for people.
pub(super) fn event_text(event: &TimedEvent) -> String {
    let what = match &event.what {
        Happening::Event(happened) => happened.to_string(),
        Happening::Lagged(lost) => format!("{lost} events were lost because nobody read them in time"),
        _ => "something this version has no words for".to_owned(),
    };
    format!("{}  {what}  [{} active]", clock_time(event.time), event.active)
}

fn member_json(member: &Member, now: Instant) -> Value {
    let mut row = info_json(&member.info);
    let since = match member.health {
        Health::Alive => None,
        Health::Stalled { since }
        | Health::Suspect { since, .. }
        | Health::Dead { since, .. }
        | Health::Left { since } => Some(now.since(since).as_secs_f64()),
    };
    row["health"] = member.health.word().into();
    row["health_seconds"] = since.into();
    if let Health::Dead { reason, .. } = member.health {
        row["reason"] = reason_code(reason).into();
    }
    row["incarnation"] = member.incarnation.into();
    row["path"] = path_word(member.path).into();
    row["round_trip_ms"] = member.round_trip.map(|trip| trip.as_secs_f64() * 1e3).into();
    row["kernel_trusted"] = member.kernel_trusted.into();
    row
}

fn counters_json(counters: &Counters) -> Value {
    json!({
        "packets_sent": counters.packets_sent,
        "packets_received": counters.packets_received,
        "bytes_sent": counters.bytes_sent,
        "bytes_received": counters.bytes_received,
        "stream_packets_sent": counters.stream_packets_sent,
        "stream_packets_received": counters.stream_packets_received,
        "refused": counters.refused,
        "connections_refused": counters.connections_refused,
        "malformed": counters.malformed,
        "dropped": counters.dropped,
        "connects": counters.connects,
        "connects_not_asked": counters.connects_not_asked,
        "stalls": counters.stalls,
        "lateness_ms_max": counters.lateness_max.as_secs_f64() * 1e3,
    })
}

/// Everything that is known at this moment, as one JSON object.
pub(super) fn status_json(membership: &Membership) -> anyhow::Result<Value> {
    let (now, active, failed) = (membership.now(), membership.active()?, membership.failed()?);
    let rows = |members: &[Member]| members.iter().map(|member| member_json(member, now)).collect::<Vec<_>>();
    Ok(json!({
        "time": rfc3339(SystemTime::now()),
        "event": "status",
        "active": active.len(),
        "members": rows(&active),
        "failed": rows(&failed),
        "counters": counters_json(&membership.counters()),
    }))
}

/// The first line: who we are and how others join.
pub(super) fn started_json(membership: &Membership, info: &MemberInfo, run: &str, join: &str) -> Value {
    json!({
        "time": rfc3339(SystemTime::now()),
        "event": "started",
        "member": info_json(info),
        "run_id": run,
        "join": join,
        "pid": std::process::id(),
        "active": membership.active().map_or(1, |active| active.len()),
    })
}

/// The last line.
pub(super) fn stopped_json() -> Value {
    json!({ "time": rfc3339(SystemTime::now()), "event": "stopped", "active": 0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlast::membership::PeerId;
    use std::sync::Arc;
    use std::time::Duration;

    #[test]
    fn dates_are_right_around_leap_days_and_new_years() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.250Z"),
            (951_782_399, "2000-02-28T23:59:59.250Z"),
            (951_782_400, "2000-02-29T00:00:00.250Z"),
            (951_868_800, "2000-03-01T00:00:00.250Z"),
            (1_735_689_599, "2024-12-31T23:59:59.250Z"),
            (4_107_542_400, "2100-03-01T00:00:00.250Z"),
        ] {
            assert_eq!(rfc3339(UNIX_EPOCH + Duration::from_millis(seconds * 1_000 + 250)), text);
        }
    }

    #[test]
    fn a_death_says_who_why_and_on_whose_word() {
        let info = Arc::new(MemberInfo {
            id: PeerId::from_bytes([0xab; 16]),
            address: "10.0.0.7:4100".parse().unwrap(),
            closed_port: 1,
            name: "node7".into(),
            meta: b"gpu=8".to_vec(),
        });
        let accuser = PeerId::from_bytes([1; 16]);
        let event = TimedEvent {
            time: UNIX_EPOCH,
            at: Instant::ORIGIN,
            active: 7,
            what: Happening::Event(Event::Died {
                info,
                reason: DeathReason::Refused,
                accusers: vec![accuser],
            }),
        };
        assert_eq!(
            event_json(&event),
            json!({
                "time": "1970-01-01T00:00:00.000Z",
                "event": "died",
                "member": {
                    "id": "ab".repeat(16),
                    "name": "node7",
                    "address": "10.0.0.7:4100",
                    "meta": "gpu=8",
                },
                "reason": "refused",
                "reason_text": DeathReason::Refused.to_string(),
                "accusers": ["01".repeat(16)],
                "active": 7,
            })
        );
        assert!(event_text(&event).starts_with("00:00:00.000  node7 (abababab) died:"));
    }
}
