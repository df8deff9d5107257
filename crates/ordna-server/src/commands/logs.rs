//! The commands of logs: SLOWLOG, LATENCY, MONITOR.

use std::sync::atomic::Ordering;

use crate::execution::command::{
    ADMIN, Command, CommandOutcome, Context, Result, SERVER_INFO, help, ok,
};
use crate::state::command_spec::{CommandFlags, CommandSpec, NO_KEY};
use crate::wire::error::CommandError;
use crate::wire::reply::Replies;
use crate::wire::request::{Arguments, number};

const SLOW_LOG: CommandFlags = SERVER_INFO.or(CommandFlags::ADMIN);

pub const COMMANDS: &[Command] = &[
    Command::container("slowlog", "Commands that took long: GET, LEN, RESET.", SLOWLOG),
    Command::container(
        "latency",
        "Times of events and commands: LATEST, HISTORY, HISTOGRAM, RESET, DOCTOR.",
        LATENCY,
    ),
    Command::new(
        "monitor",
        1,
        ADMIN,
        NO_KEY,
        "Sends all commands that the server executes to this connection.",
        monitor,
    ),
];

const SLOWLOG: &[Command] = &[
    Command::sub("slowlog|get", -2, SLOW_LOG, |context, arguments, out| {
        const USUAL: usize = 10;
        let count = match arguments.len() {
            2 => USUAL,
            3 => match number(arguments.get(2)) {
                Some(-1) => usize::MAX,
                Some(count) if count >= 0 => count as usize,
                _ => {
                    return Err("ERR count should be greater than or equal to -1".into());
                }
            },
            _ => return Err(CommandError::wrong_arity("slowlog|get")),
        };
        let list = context.state.slow_log.list(count);
        out.array(list.len());
        for slow in list {
            out.array(6);
            out.integer(slow.id as i64);
            out.integer(slow.at as i64);
            out.integer(slow.took.as_micros() as i64);
            out.array(slow.arguments.len());
            slow.arguments.iter().for_each(|argument| out.bulk(argument));
            out.bulk(slow.peer.as_bytes());
            out.bulk(&slow.client);
        }
        Ok(CommandOutcome::Done)
    }),
    Command::sub("slowlog|len", 2, SLOW_LOG, |context, _, out| {
        out.count(context.state.slow_log.len());
        Ok(CommandOutcome::Done)
    }),
    Command::sub("slowlog|reset", 2, SLOW_LOG, |context, _, out| {
        context.state.slow_log.clear();
        ok(out)
    }),
    Command::sub("slowlog|help", 2, SERVER_INFO, |_, _, out| {
        help(
            out,
            "SLOWLOG",
            &[
                "GET [<count>]",
                "    Return top <count> entries from the slowlog (default: 10, -1 mean all).",
                "    Entries are made of:",
                "    id, timestamp, time in microseconds, arguments array, client IP and port,",
                "    client name",
                "LEN",
                "    Return the length of the slowlog.",
                "RESET",
                "    Reset the slowlog.",
            ],
        )
    }),
];

const LATENCY: &[Command] = &[
    Command::sub("latency|latest", 2, ADMIN, |context, _, out| {
        let all = context.state.latencies.all();
        out.array(all.len());
        for (event, history) in all {
            let (at, last) = history.samples.back().copied().unwrap_or_default();
            out.array(4);
            out.bulk(event.as_bytes());
            out.integer(at as i64);
            out.integer(last as i64);
            out.integer(history.highest as i64);
        }
        Ok(CommandOutcome::Done)
    }),
    Command::sub("latency|history", 3, ADMIN, |context, arguments, out| {
        let all = context.state.latencies.all();
        let name = arguments.get(2);
        let history = all.iter().find(|(event, _)| name.eq_ignore_ascii_case(event.as_bytes()));
        out.array(history.map_or(0, |(_, history)| history.samples.len()));
        for (at, took) in history.iter().flat_map(|(_, history)| &history.samples) {
            out.array(2);
            out.integer(*at as i64);
            out.integer(*took as i64);
        }
        Ok(CommandOutcome::Done)
    }),
    Command::sub("latency|reset", -2, ADMIN, |context, arguments, out| {
        out.count(context.state.latencies.reset(arguments.iter_from(2)));
        Ok(CommandOutcome::Done)
    }),
    Command::sub("latency|histogram", -2, ADMIN, histogram),
    Command::sub("latency|doctor", 2, ADMIN, |context, _, out| {
        out.text(&match context.state.settings.latency_threshold.get() {
                0 => "Latency monitoring is off. Turn it on with CONFIG SET latency-monitor-threshold <milliseconds>.".to_owned(),
                threshold => {
                    let events = context.state.latencies.all();
                    let lines = events.iter().map(|(event, history)| {
                        let (times, highest) = (history.samples.len(), history.highest);
                        format!("{event}: {times} seconds with latencies, {highest} ms at most\n")
                    });
                    let lines: String = lines.collect();
                    match lines.is_empty() {
                        true => format!("No event took {threshold} ms or longer."),
                        false => format!("{lines}SLOWLOG GET shows the commands."),
                    }
                }
            });
        Ok(CommandOutcome::Done)
    }),
    Command::sub("latency|help", 2, SERVER_INFO, |_, _, out| {
        help(
            out,
            "LATENCY",
            &[
                "DOCTOR",
                "    Return a human readable latency analysis report.",
                "HISTORY <event>",
                "    Return time-latency samples for the <event> class.",
                "LATEST",
                "    Return the latest latency samples for all events.",
                "RESET [<event> ...]",
                "    Reset latency data of one or more <event> classes.",
                "HISTOGRAM [COMMAND ...]",
                "    Return a cumulative distribution of latencies of commands.",
            ],
        )
    }),
];

fn histogram(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let catalog = context.state.catalog;
    let counts = |spec: &CommandSpec| context.state.stats.of(spec.id);
    let was_called = |spec: &&CommandSpec| counts(spec).calls > 0;
    let called: Vec<&CommandSpec> = match arguments.len() {
        2 => catalog.with_subcommands().filter(was_called).collect(),
        // A command with subcommands stands for all of them.
        _ => arguments
            .iter_from(2)
            .filter_map(|name| catalog.by_full_name(std::str::from_utf8(name).ok()?))
            .flat_map(|spec| std::iter::once(spec).chain(spec.subcommands))
            .filter(was_called)
            .collect(),
    };
    let start = out.bytes.len();
    out.map(called.len());
    for spec in called {
        let counts = counts(spec);
        out.bulk(spec.name.as_bytes());
        out.map(2);
        out.bulk(b"calls");
        out.integer(counts.calls as i64);
        out.bulk(b"histogram_usec");
        // As in Redis: cumulative, from the first bucket with a call to the last.
        let filled = || counts.buckets.iter().enumerate().filter(|(_, bucket)| **bucket > 0);
        out.map(filled().count());
        let mut sum = 0;
        for (at, bucket) in filled() {
            sum += bucket;
            out.integer(1 << at);
            out.integer(sum as i64);
        }
        context.check_reply(out, start)?;
    }
    Ok(CommandOutcome::Done)
}

fn monitor(context: &mut Context<'_>, _: Arguments<'_>, out: &mut Replies) -> Result {
    if context.session.executing || context.session.transaction.is_some() {
        return Err("ERR MONITOR isn't allowed in a transaction".into());
    }
    context.session.monitor = Some(context.state.monitors.subscribe());
    context.state.was_monitored.store(true, Ordering::Relaxed);
    context.session.client.is_monitor.store(true, Ordering::Relaxed);
    ok(out)
}
