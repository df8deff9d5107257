//! Sequences of commands whose replies once differed from those of Redis, shrunk by the fuzzer,
//! with the cause.

/// Each line is a command of client 0 or 1. Words are separated by single spaces, and `""` is an
/// empty word. An empty line begins a new sequence.
pub const SEQUENCES: &str = r#"
# DISCARD and EXEC without MULTI forgot the watched keys.
0> WATCH a
1> SET a 1
0> DISCARD
0> MULTI
0> EXEC

0> WATCH a
1> SET a 1
0> EXEC
0> MULTI
0> EXEC

# RENAME of a key to itself counted as a change.
0> SET a 1
0> WATCH a
1> RENAME a a
0> MULTI
0> GET a
0> EXEC

# SETBIT of a bit that stays as it is counted as a change.
0> SETBIT a 1 1
0> WATCH a
0> SETBIT a 1 1
0> SETBIT a 0 0
0> MULTI
0> GET a
0> EXEC
0> WATCH a
0> SETBIT a 100 0
0> MULTI
0> GET a
0> EXEC
0> WATCH a
0> BITFIELD a SET u8 0 64 OVERFLOW FAIL INCRBY u8 0 255
0> MULTI
0> GET a
0> EXEC
0> WATCH a
0> BITFIELD a SET u8 200 0
0> MULTI
0> GET a
0> EXEC

# The unit of an empty range is not read.
0> SET a x
0> BITCOUNT a -1 -2 x
0> BITCOUNT a 1 0 x

# The type of the value was checked after the arguments.
0> HSET a f 1
0> INCRBYFLOAT a x
0> SETRANGE a 99999999999 x
0> LCS a b LEN IDX
0> BITCOUNT a x
0> BITPOS a 1 x

# Options of an absent key were read.
0> BITCOUNT a x
0> BITCOUNT a 1
0> BITCOUNT a 1 2 x
0> BITPOS a 0 x
0> BITPOS a 1 1 2 3 4 5

# Numbers too small for the format were taken for zero.
0> INCRBYFLOAT a 1e-5000
0> INCRBYFLOAT a -1e-4951
0> INCRBYFLOAT a 0x1p-20000
0> INCRBYFLOAT a 0e-5000
0> INCRBYFLOAT a 1e-4950
0> HINCRBYFLOAT h f 1e-5000

# Cursors are read as C reads them.
0> SCAN ""
0> SCAN +0
0> SCAN -
0> SCAN -0
0> SCAN 18446744073709551616
0> HSCAN a -5
0> HSCAN a ""
0> HSCAN a 1x

# IDLETIME and FREQ exclude each other.
0> RESTORE a 0 x IDLETIME 1 FREQ 1
0> RESTORE a -1 x FREQ 1 IDLETIME 1
0> RESTORE a 0 x FREQ x FREQ 1

# A wrong number of arguments of a subcommand was noticed by EXEC.
0> MULTI
0> OBJECT ENCODING
0> EXEC
0> MULTI
0> CLIENT GETNAME x
0> EXEC

# Arguments that were not read.
0> CLIENT UNBLOCK 1 NOPE
0> CLIENT UNBLOCK x NOPE
0> CLIENT UNBLOCK 1 TIMEOUT x
0> SCRIPT FLUSH NOPE
0> SCRIPT FLUSH SYNC x
0> COPY a b DB 2147483648
0> COPY a b DB 1
0> OBJECT IDLETIME a

# The keys of other commands.
0> COMMAND GETKEYS EVAL script 0
0> COMMAND GETKEYS EVAL script 2 a b c
0> COMMAND GETKEYS OBJECT ENCODING a
0> COMMAND GETKEYS CONFIG GET a
0> COMMAND GETKEYS CONFIG NOPE a
0> COMMAND GETKEYSANDFLAGS SET a b
0> COMMAND GETKEYSANDFLAGS SET a b GET
0> COMMAND GETKEYSANDFLAGS RENAMENX a b
0> COMMAND GETKEYSANDFLAGS BITOP AND a b c
0> COMMAND GETKEYSANDFLAGS BITFIELD a GET u8 0
0> COMMAND GETKEYSANDFLAGS EVAL script 1 a
0> COMMAND LIST FILTERBY MODULE nothing
0> COMMAND LIST FILTERBY PATTERN config|g*
0> COMMAND LIST FILTERBY NOPE x

# The order of the fields of HELLO, and the type of an empty list.
0> HELLO 3
0> CLIENT TRACKINGINFO

# LTRIM that removes nothing was no change.
0> RPUSH a x
0> WATCH a
1> LTRIM a 0 -1
0> MULTI
0> GET b
0> EXEC
0> WATCH b
1> LTRIM b 0 -1
0> MULTI
0> GET b
0> EXEC

# The options of ZADD as the score of ZINCRBY.
0> ZINCRBY a LT 355
0> ZINCRBY a nx 1
0> ZINCRBY a 1 nx
"#;
