//! Publish and subscribe: SUBSCRIBE, PUBLISH, PUBSUB and their variants for patterns and shards.
//!
//! The server is not a cluster, so shard channels are a second set of channels.

use crate::execution::command::{Command, CommandOutcome, Context, Result, SERVER_INFO, help};
use crate::keyspace::glob::Pattern;
use crate::state::command_spec::{ChannelAccess, CommandFlags, NO_KEY};
use crate::state::inbox::{Kind, LONGEST_CHANNEL};
use crate::wire::error::CommandError;
use crate::wire::reply::Replies;
use crate::wire::request::Arguments;

const LIST: CommandFlags = SERVER_INFO.or(CommandFlags::PUBSUB);
const SUBSCRIBE: CommandFlags = LIST.or(CommandFlags::NOSCRIPT).or(CommandFlags::WHILE_SUBSCRIBED);
const PUBLISH: CommandFlags = LIST.or(CommandFlags::FAST);

const fn publishing(
    name: &'static str,
    flags: CommandFlags,
    summary: &'static str,
    execute: crate::execution::command::Execute,
    arity: i64,
    channels: ChannelAccess,
) -> Command {
    Command::new(name, arity, flags, NO_KEY, summary, execute)
        .channels(channels)
        .also_in(&["pubsub"])
}

pub const COMMANDS: &[Command] = &[
    publishing(
        "subscribe",
        SUBSCRIBE,
        "Subscribes to channels.",
        |context, arguments, out| subscribe(context, Kind::Channel, arguments, out),
        -2,
        ChannelAccess::Names,
    ),
    publishing(
        "unsubscribe",
        SUBSCRIBE,
        "Ends subscriptions to channels.",
        |context, arguments, out| unsubscribe(context, Kind::Channel, arguments, out),
        -1,
        ChannelAccess::None,
    ),
    publishing(
        "psubscribe",
        SUBSCRIBE,
        "Subscribes to all channels that match patterns.",
        |context, arguments, out| subscribe(context, Kind::Pattern, arguments, out),
        -2,
        ChannelAccess::Patterns,
    ),
    publishing(
        "punsubscribe",
        SUBSCRIBE,
        "Ends subscriptions to patterns.",
        |context, arguments, out| unsubscribe(context, Kind::Pattern, arguments, out),
        -1,
        ChannelAccess::None,
    ),
    publishing(
        "ssubscribe",
        SUBSCRIBE,
        "Subscribes to shard channels.",
        |context, arguments, out| subscribe(context, Kind::Shard, arguments, out),
        -2,
        ChannelAccess::Names,
    ),
    publishing(
        "sunsubscribe",
        SUBSCRIBE,
        "Ends subscriptions to shard channels.",
        |context, arguments, out| unsubscribe(context, Kind::Shard, arguments, out),
        -1,
        ChannelAccess::None,
    ),
    publishing(
        "publish",
        PUBLISH,
        "Sends a message to the subscribers of a channel.",
        |context, arguments, out| publish(context, false, arguments, out),
        3,
        ChannelAccess::First,
    ),
    publishing(
        "spublish",
        PUBLISH,
        "Sends a message to the subscribers of a shard channel.",
        |context, arguments, out| publish(context, true, arguments, out),
        3,
        ChannelAccess::First,
    ),
    Command::container("pubsub", "Lists channels and counts subscribers.", PUBSUB),
];

const PUBSUB: &[Command] = &[
    Command::sub("pubsub|channels", -2, LIST, |context, arguments, out| {
        channels(context, false, arguments, out)
    }),
    Command::sub("pubsub|numsub", -2, LIST, |context, arguments, out| {
        count(context, false, arguments, out)
    }),
    Command::sub("pubsub|numpat", 2, LIST, |context, _, out| {
        out.count(context.state.channels.count(Kind::Pattern));
        Ok(CommandOutcome::Done)
    }),
    Command::sub("pubsub|shardchannels", -2, LIST, |context, arguments, out| {
        channels(context, true, arguments, out)
    }),
    Command::sub("pubsub|shardnumsub", -2, LIST, |context, arguments, out| {
        count(context, true, arguments, out)
    }),
    Command::sub("pubsub|help", 2, SERVER_INFO, |_, _, out| {
        help(
            out,
            "PUBSUB",
            &[
                "CHANNELS [<pattern>]",
                "    Return the currently active channels matching a <pattern> (default: '*').",
                "NUMPAT",
                "    Return number of subscriptions to patterns.",
                "NUMSUB [<channel> ...]",
                "    Return the number of subscribers for the specified channels, excluding",
                "    pattern subscriptions(default: no channels).",
                "SHARDCHANNELS [<pattern>]",
                "    Return the currently active shard level channels matching a <pattern> (default: '*').",
                "SHARDNUMSUB [<shardchannel> ...]",
                "    Return the number of subscribers for the specified shard level channel(s)",
            ],
        )
    }),
];

/// Returns the number of subscriptions that the reply to a change of `kind` reports.
fn shown_count(context: &Context<'_>, kind: Kind) -> usize {
    let inbox = &context.session.client.inbox;
    match kind {
        Kind::Shard => inbox.count(Kind::Shard),
        Kind::Channel | Kind::Pattern => inbox.count(Kind::Channel) + inbox.count(Kind::Pattern),
    }
}

/// Writes the reply for one channel.
fn reply(
    context: &mut Context<'_>,
    kind: Kind,
    word: usize,
    name: Option<&[u8]>,
    out: &mut Replies,
) {
    out.push(3);
    out.bulk(kind.words()[word].as_bytes());
    out.bulk_or_null(name);
    out.count(shown_count(context, kind));
    context.session.pushed = true;
}

/// Returns an error if the name of a channel is too long.
fn check_name(name: &[u8]) -> Result<()> {
    match name.len() {
        ..=LONGEST_CHANNEL => Ok(()),
        len => {
            Err(format!("ERR the name of a channel has {len} bytes; it may have {LONGEST_CHANNEL}")
                .into())
        }
    }
}

fn subscribe(
    context: &mut Context<'_>,
    kind: Kind,
    arguments: Arguments<'_>,
    out: &mut Replies,
) -> Result {
    if context.session.executing && kind == Kind::Shard {
        return Err("ERR SSUBSCRIBE isn't allowed for a DENY BLOCKING client".into());
    }
    let start = out.bytes.len();
    for name in arguments.iter_from(1) {
        check_name(name).inspect_err(|_| out.bytes.truncate(start))?;
        context.session.receives = true;
        let client = &context.session.client;
        context.state.channels.subscribe(kind, name, client).map_err(|error| {
            out.bytes.truncate(start);
            CommandError::from(error.to_string())
        })?;
        reply(context, kind, 0, Some(name), out);
    }
    Ok(CommandOutcome::Done)
}

fn unsubscribe(
    context: &mut Context<'_>,
    kind: Kind,
    arguments: Arguments<'_>,
    out: &mut Replies,
) -> Result {
    let client = std::sync::Arc::clone(&context.session.client);
    let all;
    let names: Vec<&[u8]> = if arguments.len() > 1 {
        arguments.iter_from(1).collect()
    } else {
        all = client.inbox.names(kind);
        all.iter().map(|name| &**name).collect()
    };
    for name in &names {
        context.state.channels.unsubscribe(kind, name, &client);
        // Messages that were published earlier precede the reply; no message of the channel follows
        // it.
        if !context.session.executing {
            context.session.deliver(out);
        }
        reply(context, kind, 1, Some(name), out);
    }
    if names.is_empty() {
        reply(context, kind, 1, None, out);
    }
    Ok(CommandOutcome::Done)
}

fn publish(
    context: &mut Context<'_>,
    is_shard: bool,
    arguments: Arguments<'_>,
    out: &mut Replies,
) -> Result {
    check_name(arguments.get(1))?;
    let receivers = context.state.publish(is_shard, arguments.get(1), arguments.get(2));
    out.count(receivers);
    Ok(CommandOutcome::Done)
}

fn channels(
    context: &mut Context<'_>,
    is_shard: bool,
    arguments: Arguments<'_>,
    out: &mut Replies,
) -> Result {
    if arguments.len() > 3 {
        return Err(CommandError::subcommand_syntax(arguments));
    }
    let pattern = (arguments.len() == 3).then(|| Pattern::new(arguments.get(2)));
    let mut names = context.state.channels.names(is_shard);
    names.retain(|name| pattern.as_ref().is_none_or(|pattern| pattern.matches(name)));
    let start = out.bytes.len();
    out.array(names.len());
    for name in names {
        out.bulk(&name);
        context.check_reply(out, start)?;
    }
    Ok(CommandOutcome::Done)
}

fn count(
    context: &mut Context<'_>,
    is_shard: bool,
    arguments: Arguments<'_>,
    out: &mut Replies,
) -> Result {
    let start = out.bytes.len();
    out.array((arguments.len() - 2) * 2);
    for name in arguments.iter_from(2) {
        out.bulk(name);
        out.count(context.state.channels.subscribers(is_shard, name));
        context.check_reply(out, start)?;
    }
    Ok(CommandOutcome::Done)
}
