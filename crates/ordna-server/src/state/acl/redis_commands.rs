//! Commands of Redis 7.0.15 that Ordna lacks.
//!
//! ACL rules may name them, so that an ACL file written for Redis can be loaded. A rule that names
//! a command which neither Redis nor Ordna has is refused, because it probably is a typing error.

/// Commands in lower case; after `|`, the subcommands that Ordna lacks, separated by commas.
const NAMES: &str = "
    asking client|caching
    cluster|addslots,addslotsrange,bumpepoch,count-failure-reports,countkeysinslot,delslots
    cluster|delslotsrange,failover,flushslots,forget,getkeysinslot,help,info,keyslot,links,meet
    cluster|myid,nodes,replicas,replicate,reset,saveconfig,set-config-epoch,setslot,shards,slaves
    cluster|slots debug failover fcall fcall_ro
    function|delete,dump,flush,help,kill,list,load,restore,stats geoadd geodist geohash geopos
    georadius georadius_ro georadiusbymember georadiusbymember_ro geosearch geosearchstore
    latency|graph migrate module|help,list,load,loadex,unload move pfadd pfcount pfdebug pfmerge
    pfselftest psync readonly readwrite replconf restore-asking script|debug
    swapdb sync xack xadd xautoclaim xclaim xdel
    xgroup|create,createconsumer,delconsumer,destroy,help,setid xinfo|consumers,groups,help,stream
    xlen xpending xrange xread xreadgroup xrevrange xsetid xtrim";

/// Returns whether Redis has a command, or a subcommand such as `xinfo|stream`, with this
/// lower-case name.
pub fn is_known(name: &str) -> bool {
    let (command, word) = name.split_once('|').map_or((name, None), |(of, word)| (of, Some(word)));
    NAMES.split_whitespace().any(|known| {
        let (known, words) =
            known.split_once('|').map_or((known, None), |(of, words)| (of, Some(words)));
        known == command
            && word.is_none_or(|word| {
                words.is_some_and(|words| words.split(',').any(|known| known == word))
            })
    })
}

/// Returns whether Redis has subcommands of this command.
pub fn has_subcommands(command: &str) -> bool {
    let of = |known: &str| known.split_once('|').is_some_and(|(known, _)| known == command);
    NAMES.split_whitespace().any(of)
}

/// Returns the commands, each with its subcommands that Ordna lacks.
#[cfg(test)]
pub fn all() -> impl Iterator<Item = (&'static str, Vec<&'static str>)> {
    NAMES.split_whitespace().map(|known| match known.split_once('|') {
        Some((command, words)) => (command, words.split(',').collect()),
        None => (known, Vec::new()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_their_subcommands_are_known() {
        for name in ["geoadd", "cluster", "cluster|addslots", "cluster|slots", "xinfo|stream"] {
            assert!(is_known(name), "{name}");
        }
        for name in ["", "|", "get", "geoadd|x", "geoadd|", "cluster|", "cluster|nope", "addslots"]
        {
            assert!(!is_known(name), "{name}");
        }
        assert!(has_subcommands("function") && !has_subcommands("geoadd"));
    }
}
