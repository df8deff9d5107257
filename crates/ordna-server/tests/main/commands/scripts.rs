//! Tests of `EVAL` and related commands.

use std::time::{Duration, Instant};

use ordna_server::Config;

use super::against_redis::Redis;
use crate::common::{Client, converse, fresh, request, show, start};

/// Scripts whose replies are compared with those of Redis. The key `s` is "abc", `n` is 5, and `h`
/// is a hash.
const SCRIPTS: &str = r#"
return foo
foo=1
string.x=1
return redis.call("incr","s")
return redis.pcall("incr","s")
return redis.call("nope")
return redis.call()
return redis.call("get")
return redis.call("get",{})
return redis.call("eval","x",0)
return redis.call("config","get","x")
return redis.call("config","nope")
return {err="My Err"}
return {err="ERR x"}
return {ok="fine"}
return redis.error_reply("My Err")
return redis.error_reply("-X y")
return redis.status_reply("fine")
return redis.error_reply()
return redis.error_reply("")
return redis.error_reply("single")
return redis.error_reply("-single")
return redis.error_reply("A  b")
return redis.error_reply("X\r\n+b")
return redis.error_reply("X y\r\n")
return redis.error_reply("My Err").err
return redis.error_reply("single").err
return redis.pcall("nope").err
return redis.pcall("nope").ignore_error_stats_update
redis.set_repl(4)
redis.set_repl("x") redis.set_repl(1.5) redis.set_repl({}) return 1
redis.set_repl()
local c = cjson.new() c.x = 1 return {c.encode({c.x}), c == cjson and 1 or 0}
pairs()
error(redis.error_reply("X\r\n+INJECTED"))
error("boom")
error({err="X y"})
return {1,2,nil,3}
return {1,{2,{3,"x"}}}
return 3.99
return -3.99
return true
return false
return nil
return {true,false}
x y
return {ok="a\r\nb"}
return redis.call("hgetall","h")
redis.setresp(3) return redis.call("hgetall","h")
redis.setresp(3) return redis.call("get","nothing")
redis.setresp(3) return true
redis.setresp(3) return redis.call("hgetall","h").map.a
redis.setresp(2) return redis.call("get","nothing") == false
redis.setresp(3) return redis.call("get","nothing") == nil
redis.setresp(4)
redis.setresp()
return {double=3.5}
return {map={a=1}}
return {set={a=true}}
return {big_number="123"}
rawset(_G,"x",1)
setmetatable(_G,{})
getmetatable(_G).__index=1
getmetatable("").__index.upper=1
redis.call=1
KEYS[1]=2 return KEYS[1]
return redis.sha1hex("x")
return redis.sha1hex()
return redis.log(9,"x")
return redis.log(1)
return redis.log("x","y")
redis.log(redis.LOG_DEBUG,"hello")
redis.breakpoint()
return redis.set_repl(redis.REPL_ALL)
return redis.replicate_commands()
return {redis.REDIS_VERSION, redis.REDIS_VERSION_NUM}
return redis.acl_check_cmd("get","x")
return redis.acl_check_cmd("nope")
return {redis.LOG_DEBUG,redis.LOG_VERBOSE,redis.LOG_NOTICE,redis.LOG_WARNING}
return pcall(function() error("x") end)
return {pcall(function() error("x") end)}
return {select(2,pcall(function() error("x") end))}
local a,b=pcall(redis.call,"nope") return b
local a,b=pcall(redis.call,"incr","s") return b
local a,b=pcall(redis.call,"incr","s") return type(b)
return #{pcall(redis.call,"nope")}
return _VERSION
return loadstring("return 1")()
return loadstring("return foo")()
return loadstring("x=1")()
return tostring(1e15)..tostring(0.1)
return redis.call("set","f",1.5)
return redis.call("set","f",1.5)..""
return redis.call("echo",1e20)
return redis.call("echo",3)
return redis.call("echo",0.1)
return redis.call("echo",true)
return redis.call("echo","a").."b"
return {1,{err="X"}}
return {1,{err="X y"},2}
return string.rep("x",3)
return #string.rep("x",1000)
local t={} for k in pairs(cjson) do t[#t+1]=k end return #t>2
local t={} for k,v in ipairs({3,4}) do t[k]=v*2 end return t
return table.concat({1,2,3},",")
return math.floor(3.7)
return redis.call("incrby","n",2)
return redis.call("ping")
return redis.call("set","x","1")["ok"]
return redis.call("type","h")
return type(redis.call("get","nothing"))
return redis.call("mget","s","nothing","n")
return redis.call("exists","s")
return unpack({1,2})
return {unpack({1,2})}
return {unpack({1,2,3}, -2, 2147483647)}
return {unpack({1,2,3}, -1, -2)}
return {unpack({1,2,3}, "2", 3.9)}
return #{unpack({1,2,3}, -1, 5)}
local a = unpack(1)
local a = unpack({}, {})
return ("hello"):find("l")
return {("hello"):find("l", 1, true)}
return {string.gsub("hello", "(l)", "%1x")}
local t = {} for k in string.gmatch("a b", "%a") do t[#t+1] = k end return t
return string.match("key=val", "(%w+)=(%w+)")
local f = function(x) return x end return f
return coroutine.wrap(function() coroutine.yield(7) end)()
return print
return os.getenv
return io
return dofile
return require
return setfenv
return xpcall(function() return 1 end, function() return 2 end)
return {next({5})}
return rawget({1},1)
return rawequal(1,1)
return bit.band(255,15)
return bit.bor(1,2,4)
return bit.bxor(1,3)
return bit.bnot(0)
return bit.lshift(1,31)
return bit.rshift(-1,28)
return bit.arshift(-256,4)
return bit.rol(1,33)
return bit.ror(1,1)
return bit.bswap(1)
return bit.tohex(65535,4)
return bit.tohex(-1)
return bit.tohex(255,-4)
return bit.tobit(4294967295)
return cjson.encode({1,2,3})
return cjson.encode({a=1})
return cjson.encode({})
return cjson.encode({[1]=1,[3]=3})
return cjson.encode("a/b\"\\\n\1\127é")
return cjson.encode(1.5)
return cjson.encode(1e20)
return cjson.encode(0/0)
return cjson.encode(cjson.null)
return cjson.encode({cjson.null,true,false})
return cjson.encode({[1]=1,[1000]=2})
return cjson.encode(function() end)
return cjson.encode({[true]=1})
return cjson.decode("[1,2,[3]]")
return cjson.decode('{"a":[1,{"b":2}]}').a[2].b
return cjson.decode('"\\u00e9\\ud83d\\ude00\\n"')
return cjson.decode("null") == cjson.null
return cjson.decode("[1.5e3]")[1]
return cjson.decode("true")
return cjson.decode("[1,]")
return cjson.decode("{")
return cjson.decode("x")
return cjson.decode("[]")
return cjson.decode('{"a":1} x')
return cjson.decode(cjson.encode({a={1,2},b="x"})).a[2]
return cjson.encode_max_depth()
return cjson.encode_max_depth(3)
cjson.encode_max_depth(2) return cjson.encode({{1}})
cjson.encode_max_depth(2) return cjson.encode({{{1}}})
return cjson.encode_max_depth(0)
return cjson.encode_max_depth("x")
return cjson.encode_max_depth(1,2)
cjson.decode_max_depth(2) return cjson.decode("[[1]]")
cjson.decode_max_depth(2) return cjson.decode("[[[1]]]")
cjson.decode_max_depth(2) return cjson.decode("[[[]]]")
cjson.encode_max_depth(1000) cjson.decode_max_depth(1000)
return cjson.encode_number_precision(3)..cjson.encode(1/3)
cjson.encode_number_precision(14)
return cjson.encode_number_precision(15)
return cjson.encode_keep_buffer(false)
return tostring(cjson.encode_keep_buffer(true))
return cjson.encode_invalid_numbers("null")..cjson.encode({0/0,1/0})
return tostring(cjson.encode_invalid_numbers(true))..cjson.encode({0/0,-1/0})
return tostring(cjson.encode_invalid_numbers("off"))
return cjson.encode_invalid_numbers("x")
return cjson.decode("[nan]")[1] ~= 0
cjson.decode_invalid_numbers(false) return cjson.decode("[0x10]")
return tostring(cjson.decode_invalid_numbers(true))..cjson.decode("[0x10]")[1]
return {cjson.encode_sparse_array(true)}
cjson.encode_sparse_array(false,2,10)
return {cjson.encode_sparse_array(true,2,3),cjson.encode({[1]=1,[5]=2})}
cjson.encode_sparse_array(false,0,3) return cjson.encode({[1]=1,[20]=2})
cjson.encode_sparse_array(false,2,10)
return cmsgpack.unpack(cmsgpack.pack({1,2,"x"}))
return cmsgpack.pack(1,-1,127,128,255,256,65535,65536,4294967296,-32,-33,-128,-129,-32769,-2147483649)
return cmsgpack.pack(0.5,0.1,true,false,nil)
return cmsgpack.pack({a=1})
return cmsgpack.pack({1,2,{3}})
return cmsgpack.pack(string.rep("x",40))
return {cmsgpack.unpack(cmsgpack.pack(1,"x",-5,0.5))}
return {cmsgpack.unpack_one(cmsgpack.pack(1,2),0)}
return {cmsgpack.unpack_one(cmsgpack.pack(1,2),1)}
return {cmsgpack.unpack_limit(cmsgpack.pack(1,2,3),2,0)}
return cmsgpack.unpack("\217")
return struct.pack("HH",1,2)
return struct.pack(">I2<I4b",1,2,-1)
return struct.pack("sc3",  "ab", "xyz")
return {struct.unpack("HH",struct.pack("HH",1,2))}
return {struct.unpack(">i2<i4b",struct.pack(">i2<i4b",-1,-2,-3))}
return {struct.unpack("Bc0","\003abcd")}
return {struct.unpack("s","ab\0cd")}
return struct.size("HHl")
return struct.size("!8bl")
return struct.unpack("H","x")
return struct.pack("d",1.5)
return struct.unpack("d",struct.pack("d",1.5))*2
return {string.find("hello world","o w")}
return {string.find("hello","l+")}
return {string.find("hello","l",-2)}
return {string.find("a.b",".",1,true)}
return {string.find("a+b","+",1,true)}
return {string.find("hello","")}
return {string.find("hello","",10)}
return {string.find("hello","xyz",1,true)}
return {string.find("abc","b",-10)}
return {("key = value"):match("(%w+)%s*=%s*(%w+)")}
return ("hello"):match("l()l")
return ("hello"):match("^h.-o$")
return {("f(a(b)c)d"):match("%b()")}
return {("THE (quick) fox"):find("%f[%a]%a+%f[%A]")}
return ("  trim "):match("^%s*(.-)%s*$")
return {("2024-05-06"):match("(%d+)-(%d+)-(%d+)")}
return ("aa"):match("(a)%1")
return ("x]y"):find("[]]")
return ("x-y"):find("[a%-]")
return ("x^y"):find("[%^x]")
return ("a\0b"):find("%z")
return ("é"):find("[\195]")
return {("abc"):gsub("%w","%0%0")}
return {("abc"):gsub("","-")}
return {("abc def"):gsub("%w+","<%1>")}
return {("abc def"):gsub("(%w)(%w)","%2%1")}
return {("hello"):gsub("l",{l="L"})}
return {("hello"):gsub("l",function(x) return x:upper() end)}
return {("hello"):gsub("l",function(x) return nil end)}
return {("hello"):gsub("()l",function(at) return at end)}
return {("hello"):gsub("",function() return "." end)}
return {("hello"):gsub("x*","-")}
return {("hello"):gsub("^h","J")}
return {("hello"):gsub("^",function() return ">" end)}
return {("hello"):gsub("l","r",1)}
return {("hello"):gsub("l",function() return "r" end,1)}
return {("hello"):gsub("l","r",0)}
return {("hello"):gsub(".",{h=1,e=true})}
return {("abc"):gsub("b",5)}
return {(123):gsub(2,"x")}
return {string.gsub(123,2,"x")}
return {string.gsub("a%b","%%","%%%%")}
local a=("hello"):gsub("l",function() return {} end) return a
return ("hello"):gsub("(","x")
local a=("hello"):gsub("l","%2") return a
return ("hello"):find("%")
return ("hello"):find("[a")
return ("hello"):find("h)")
return ("hello"):find("%1")
return ("hello"):find("%b")
return ("hello"):find("%f")
return ("hello"):find()
local a=string.gsub("hello","l") return a
return string.find(nil,"x")
local t={} for k,v in ("a=1,b=2"):gmatch("(%w)=(%w)") do t[#t+1]=k..v end return t
local t={} for w in ("one two"):gmatch("%a+") do t[#t+1]=w end return t
local t={} for w in ("abc"):gmatch("") do t[#t+1]=w end return #t
local t={} for w in ("aab"):gmatch("a*") do t[#t+1]=w end return t
local t={} for w in ("^a^a"):gmatch("^a") do t[#t+1]=w end return t
local t={} for p in ("abc"):gmatch("()") do t[#t+1]=p end return t
local t={3,1,2} table.sort(t) return t
local t={"b","a"} table.sort(t,function(a,b) return a>b end) return t
local t={1,"a"} table.sort(t) return t
local t={1,2} table.insert(t,3) table.insert(t,1,0) return t
local t={1,2,3} table.remove(t,1) return t
return table.remove({})
local a=table.insert({1},1,2,3) return a
local a=table.insert(nil,1) return a
local a=table.insert({1},"x",1) return a
local a=table.remove(nil) return a
local a=table.sort(nil) return a
table.insert(redis,1)
return string.rep("",3)
return string.rep("","3")
return string.rep("ab","2")
return string.rep("ab",-1)
local c=coroutine.wrap(function(a) local b=coroutine.yield(a+1) return b*2 end) return {c(1),c(5)}
local c=coroutine.wrap(function() error("x") end) return c()
local c=coroutine.create(function() error({err="X y"}) end) local ok,e=coroutine.resume(c) return e
local c=coroutine.create(function() return redis.call("nope") end) local ok,e=coroutine.resume(c) return e
return collectgarbage("count")>0
return collectgarbage("collect")
local t={} for i=1,20000 do t[i]="x" end return #t
"#;

/// Returns whether two error texts count as equal, because those of libraries differ after their
/// beginning.
fn is_same_error(redis: &str, ours: &str) -> bool {
    let begin = |text: &str| text.split(' ').take(2).collect::<Vec<_>>().join(" ");
    redis.starts_with("-ERR user_script") && begin(redis) == begin(ours)
}

#[test]
#[ignore = "needs redis-server; .ci/run installs it and runs this"]
fn scripts_answer_as_in_redis() {
    let redis = Redis::start();
    let ours = start(Config::default());
    let mut different = Vec::new();
    for resp3 in [false, true] {
        let mut pair = [redis.1, ours.address].map(|address| {
            let mut client = Client::new(address);
            client.resp3 = resp3;
            client.say(if resp3 { "HELLO 3" } else { "PING" });
            client
        });
        for script in SCRIPTS.lines().filter(|line| !line.is_empty()) {
            for client in &mut pair {
                client.say("SET s abc");
                client.say("SET n 5");
                client.say("HSET h a 1 b 2");
            }
            let replies =
                pair.each_mut().map(|client| client.ask(&[b"EVAL", script.as_bytes(), b"0"]));
            let known = [
                // The order is that of a table.
                "return os.getenv",
            ];
            let [redis, ours] = &replies;
            if redis != ours && !is_same_error(redis, ours) && !known.contains(&script) {
                different.push(format!("{script}\n  Redis: {redis}\n  Ordna: {ours}"));
            }
        }
        for words in [
            vec!["EVAL", "return {KEYS[1],KEYS[2],ARGV[1],#KEYS,#ARGV}", "2", "a", "b", "c"],
            vec!["EVAL", "return 1", "1"],
            vec!["EVAL", "return 1", "-1"],
            vec!["EVAL", "return 1", "x"],
            vec!["EVAL", "return 1"],
            vec!["EVALSHA", "e0e1f9fabfc9d4800c877a703b823ac0578ff8db", "0"],
            vec!["EVALSHA", "0000000000000000000000000000000000000000", "0"],
            vec!["EVALSHA", "x", "0"],
            vec!["SCRIPT", "LOAD", "return 5"],
            vec!["SCRIPT", "LOAD", "x y"],
            vec!["EVALSHA", "4CA238F611C9D0AE4E9A75A5DBAC22AEDC1E1282", "0"],
            vec!["SCRIPT", "EXISTS", "4ca238f611c9d0ae4e9a75a5dbac22aedc1e1282", "x"],
            vec!["SCRIPT", "FLUSH", "NOW"],
            vec!["SCRIPT", "FLUSH"],
            vec!["SCRIPT", "EXISTS", "4ca238f611c9d0ae4e9a75a5dbac22aedc1e1282"],
            vec!["SCRIPT", "KILL"],
            vec!["EVAL_RO", "return redis.call('get',KEYS[1])", "1", "s"],
            vec!["EVAL_RO", "return redis.call('set',KEYS[1],1)", "1", "s"],
            vec!["EVAL", "#!lua flags=no-writes\nreturn redis.call('set','s',1)", "0"],
            vec!["EVAL", "#!lua flags=no-writes\nreturn redis.call('get','s')", "0"],
            vec!["EVAL", "#!lua\nreturn foo", "0"],
            vec!["EVAL", "#!js\nreturn 1", "0"],
            vec!["EVAL", "#!lua flags=x\nreturn 1", "0"],
            vec!["EVAL", "#!lua x=y\nreturn 1", "0"],
            vec!["EVAL", "#!lua flags=\nreturn 1", "0"],
            vec!["EVAL", "#!lua flags=,no-writes\nreturn 1", "0"],
            vec!["EVAL_RO", "return redis.call('publish','a','b')", "0"],
            vec!["MULTI"],
            vec!["EVAL", "return redis.call('incr','n')", "0"],
            vec!["EXEC"],
        ] {
            let all: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
            let [redis, ours] = pair.each_mut().map(|client| client.ask(&all));
            if redis != ours {
                different.push(format!("{words:?}\n  Redis: {redis}\n  Ordna: {ours}"));
            }
        }
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
}

#[test]
fn a_script_is_one_step_and_the_rights_of_its_caller_hold() {
    let (server, mut client) = fresh();
    let transfer = "local a = redis.call('decrby', KEYS[1], ARGV[1]) redis.call('incrby', KEYS[2], ARGV[1]) return a";
    client.say("SET a 1000");
    client.say("SET b 0");
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut client = Client::new(server.address);
                for _ in 0..200 {
                    let reply = client.ask(&[b"EVAL", transfer.as_bytes(), b"2", b"a", b"b", b"1"]);
                    assert!(reply.starts_with(':'), "{reply}");
                }
            });
        }
        scope.spawn(|| {
            let mut client = Client::new(server.address);
            for _ in 0..400 {
                let both = client.say("MGET a b");
                let numbers: Vec<i64> =
                    both.split(r"\r\n").filter_map(|word| word.parse().ok()).collect();
                assert_eq!(numbers.iter().sum::<i64>(), 1000, "{both}");
            }
        });
    });
    client.say("ACL SETUSER u on nopass ~a* &x +eval +get +publish");
    client.say("AUTH u x");
    for (script, error) in [
        ("return redis.call('set','a',1)", "can't run this command or subcommand"),
        ("return redis.call('get','b')", "can't access at least one of the keys"),
        ("return redis.call('publish','y','m')", "can't publish to the channel"),
    ] {
        let reply = client.ask(&[b"EVAL", script.as_bytes(), b"0"]);
        assert!(
            reply.starts_with("-ERR The user executing the script") && reply.contains(error),
            "{reply}"
        );
    }
    assert_eq!(client.ask(&[b"EVAL", b"return redis.call('get','a')", b"0"]), r"$3\r\n600\r\n");
}

#[test]
fn a_script_that_does_not_end_is_ended() {
    let (server, mut client) = fresh();
    client.say("CONFIG SET busy-reply-threshold 200");
    let mut others: Vec<Client> = (0..20).map(|_| Client::new(server.address)).collect();
    for script in [
        "while true do end",
        "while true do pcall(function() while true do end end) end",
        "while true do xpcall(function() while true do end end, function() while true do end end) end",
        "while true do coroutine.resume(coroutine.create(function() while true do end end)) end",
        "return string.find(string.rep('a', 300), string.rep('a*', 100) .. 'b')",
        "return pcall(string.gsub, string.rep('a', 300), string.rep('a*', 100) .. 'b', '')",
        "while true do pcall(string.match, string.rep('a', 300), string.rep('a-', 100) .. 'b') end",
        "return string.find(string.rep('a', 4e6), string.rep('a', 2e6) .. 'b', 1, true)",
        "local t = {} for i = 1, 1e6 do t[i] = i % 7 end while true do table.sort(t) end",
        "local t = {1} for i = 1, 100 do t = {t, t} end while true do pcall(cjson.encode, t) end",
        "local t = {} for i = 1, 60 do t = {t, t} end return t",
        "while true do local s = string.rep('x', 2e7) end",
        "local s = string.rep('x', 5e7) while true do redis.sha1hex(s) end",
    ] {
        let mut looping = Client::new(server.address);
        looping.send(&request(&[b"EVAL", script.as_bytes(), b"0"]));
        std::thread::sleep(Duration::from_millis(50));
        // More clients than the server has threads.
        for (at, other) in others.iter_mut().enumerate() {
            let words: &[&[u8]] =
                if at % 2 == 0 { &[b"GET", b"a"] } else { &[b"MSET", b"a", b"1"] };
            other.send(&request(words));
        }
        for other in &mut others {
            let reply = show(&other.reply());
            assert!(reply.starts_with("-BUSY Redis is busy running a script"), "{reply}");
        }
        let begin = Instant::now();
        assert_eq!(client.say("SCRIPT KILL"), r"+OK\r\n");
        let reply = show(&looping.reply());
        assert!(reply.starts_with("-ERR Script killed by user with SCRIPT KILL"), "{reply}");
        assert!(begin.elapsed() < Duration::from_secs(5), "{script}: {:?}", begin.elapsed());
        assert_eq!(client.say("SCRIPT KILL"), r"-NOTBUSY No scripts in execution right now.\r\n");
        assert_eq!(others[0].say("PING"), r"+PONG\r\n");
    }
    // A script that has written continues.
    let mut looping = Client::new(server.address);
    let script = "redis.call('set','w','1') for i=1,20000000 do if i % 1000000 == 0 and redis.call('get','stop') then return i end end";
    looping.send(&request(&[b"EVAL", script.as_bytes(), b"0"]));
    std::thread::sleep(Duration::from_millis(100));
    let reply = client.say("SCRIPT KILL");
    assert!(reply.starts_with("-UNKILLABLE") || reply.starts_with("-NOTBUSY"), "{reply}");
    looping.reply();
    assert_eq!(client.say("GET w"), r"$1\r\n1\r\n");
}

/// No thread waits for a script, neither for the keys of a pipeline nor for other scripts.
#[test]
fn pipelines_and_scripts_are_answered_while_a_script_runs() {
    let (server, mut client) = fresh();
    client.say("CONFIG SET busy-reply-threshold 300");
    let mut looping = Client::new(server.address);
    looping.send(&request(&[b"EVAL", b"while true do end", b"0"]));
    std::thread::sleep(Duration::from_millis(50));
    let pipeline = [request(&[b"GET", b"a"]), request(&[b"GET", b"b"])].concat();
    let script = request(&[b"EVAL", b"return 1", b"0"]).repeat(2);
    let mut others: Vec<Client> = (0..8).map(|_| Client::new(server.address)).collect();
    for (at, other) in others.iter_mut().enumerate() {
        other.send(if at % 2 == 0 { &pipeline } else { &script });
    }
    for other in &mut others {
        for _ in 0..2 {
            let reply = show(&other.reply());
            assert!(reply.starts_with("-BUSY"), "{reply}");
        }
    }
    assert_eq!(client.say("SCRIPT KILL"), r"+OK\r\n");
    assert!(show(&looping.reply()).starts_with("-ERR Script killed"));
}

/// A script in a transaction is part of its step, even for indexes that take snapshots
/// concurrently.
#[test]
fn scripts_in_transactions_go_on_beside_indexes() {
    let (server, mut client) = fresh();
    client.say("FT.CREATE i ON HASH PREFIX 1 d: SCHEMA n NUMERIC");
    let (budget, begin) = (ordna_testkit::budget().max(Duration::from_secs(2)), Instant::now());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut client = Client::new(server.address);
                while begin.elapsed() < budget {
                    let found = client.say("FT.SEARCH i * NOCONTENT");
                    // The query sees all writes of a transaction or none.
                    let number = found.split(r"\r\n").nth(1);
                    assert!(matches!(number, Some(":0" | ":3")), "{found}");
                }
            });
        }
        let script = b"redis.call('hset', 'd:2', 'n', 1) return redis.call('hset', 'd:2', 'm', 1)";
        while begin.elapsed() < budget {
            let mut requests = request(&[b"MULTI"]);
            requests.extend(request(&[b"HSET", b"d:1", b"n", b"1"]));
            requests.extend(request(&[b"EVAL", script, b"0"]));
            requests.extend(request(&[b"HSET", b"d:3", b"n", b"1"]));
            requests.extend(request(&[b"EXEC"]));
            requests.extend(request(&[b"DEL", b"d:1", b"d:2", b"d:3"]));
            client.send(&requests);
            for _ in 0..6 {
                let reply = show(&client.reply());
                assert!(!reply.starts_with('-'), "{reply}");
            }
        }
    });
}

/// Scripts that some clients send without a pause do not prevent the commands of others.
#[test]
fn commands_get_their_turn_between_scripts() {
    let (server, mut client) = fresh();
    let (budget, begin) = (Duration::from_secs(4), Instant::now());
    let script = b"for i = 1, 100000 do end return 1";
    let mut longest = Duration::ZERO;
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                let mut client = Client::new(server.address);
                while begin.elapsed() < budget {
                    assert_eq!(client.ask(&[b"EVAL", script, b"0"]), r":1\r\n");
                }
            });
        }
        while begin.elapsed() < budget {
            let asked = Instant::now();
            client.say("GET a");
            longest = longest.max(asked.elapsed());
        }
    });
    assert!(longest < budget / 2, "a command waited {longest:?}");
}

/// There are more clients than the runtime has threads, and each sends two commands at once.
#[test]
fn pipelines_that_wait_for_a_script_leave_threads_to_end_it() {
    let server = start(Config { max_clients: 1000, ..Config::default() });
    let mut client = Client::new(server.address);
    let mut others: Vec<Client> = (0..700).map(|_| Client::new(server.address)).collect();
    let mut looping = Client::new(server.address);
    looping.send(&request(&[b"EVAL", b"while true do end", b"0"]));
    std::thread::sleep(Duration::from_millis(100));
    let both = [request(&[b"GET", b"a"]), request(&[b"GET", b"b"])].concat();
    others.iter_mut().for_each(|other| other.send(&both));
    std::thread::sleep(Duration::from_millis(200));
    let begin = Instant::now();
    assert_eq!(client.say("SCRIPT KILL"), r"+OK\r\n");
    assert!(begin.elapsed() < Duration::from_secs(5));
    assert!(show(&looping.reply()).starts_with("-ERR Script killed"));
    for other in &mut others {
        assert_eq!(other.reply(), b"$-1\r\n");
        assert_eq!(other.reply(), b"$-1\r\n");
    }
}

/// Calls that need much more memory, or a deeper stack, than their arguments.
#[test]
fn what_a_script_makes_outside_of_lua_is_bounded() {
    let (_server, mut client) = fresh();
    let many = "local s = string.rep('x', 1e6) local t = {} for i = 1, 1000 do t[i] = s end";
    for (script, error) in [
        (format!("{many} return #cjson.encode(t)"), "the result would exceed"),
        (format!("{many} return #cmsgpack.pack(t)"), "the result would exceed"),
        (format!("{many} return #cmsgpack.pack(unpack(t))"), "the result would exceed"),
        (format!("{many} return t"), "the reply would exceed"),
        (format!("{many} return {{map = {{a = t}}}}"), "the reply would exceed"),
        (format!("{many} return redis.call('rpush', 'l', unpack(t))"), "arguments of a command"),
        (format!("{many} return redis.acl_check_cmd('rpush', unpack(t))"), "arguments of a command"),
        (
            "local t = {string.rep('x', 1000)} for i = 1, 40 do t = {t, t} end return #cjson.encode(t)".to_owned(),
            "the result would exceed",
        ),
        (
            "local s = string.rep('a', 1e6) return #s:gsub('a', string.rep('b', 1000))".to_owned(),
            "the result would exceed",
        ),
        (
            "return string.find(string.rep('a', 3e5), string.rep('a?', 3e5))".to_owned(),
            "pattern too complex",
        ),
        (
            "local function f() return coroutine.wrap(f)() end return f()".to_owned(),
            "C stack overflow",
        ),
        (
            "local function f(n) if n == 0 then return coroutine.wrap(function() return f(150) end)() end return select(2, pcall(f, n - 1)) end return f(150)".to_owned(),
            "C stack overflow",
        ),
        ("table.insert({1}, -2147483647, 1)".to_owned(), "position out of bounds"),
    ] {
        let begin = Instant::now();
        let reply = client.ask(&[b"EVAL", script.as_bytes(), b"0"]);
        // An error that is caught is a text.
        assert!(reply.contains(error), "{script}: {reply:.300}");
        assert!(begin.elapsed() < Duration::from_secs(60), "{script}: {:?}", begin.elapsed());
    }
    let long = client.ask(&[b"EVAL", b"error(string.rep('x', 1e6))", b"0"]);
    assert!(long.starts_with("-ERR user_script:1: xxx") && long.len() < 10_000, "{}", long.len());
    let rows =
        client.ask(&[b"EVAL", b"local t = {} for i = 1, 20000 do t[i] = {i} end return t", b"0"]);
    assert!(rows.starts_with(r"*20000\r\n") && rows.ends_with(r":20000\r\n"), "{rows:.100}");
    let fields = b"local t = {} for i = 1, 20000 do t[i .. ''] = i end return {map = t}";
    let fields = client.ask(&[b"EVAL", fields, b"0"]);
    assert!(fields.starts_with(r"*40000\r\n"), "{fields:.100}");
}

/// What a script leaves in the state must not affect the scripts of other users.
#[test]
fn a_script_leaves_nothing_to_the_next() {
    let (_server, mut client) = fresh();
    for script in [
        "table.insert(redis, 1)",
        "table.insert(_G, 1, 1)",
        "for i = 1, 100 do pcall(table.insert, string, i) end return {#string}",
        "rawset(redis, 1, 1)",
        "collectgarbage('stop') collectgarbage('setpause', 1000000)",
        r"for _, option in ipairs({'stop\0', 'setpause\0', 'setstepmul\0'}) do pcall(collectgarbage, option, 1e6) end",
        "return #KEYS",
    ] {
        client.ask(&[b"EVAL", script.as_bytes(), b"0"]);
    }
    for (script, reply) in [
        ("return {#redis, #_G, #string, redis[1] or 0}", r"*4\r\n:0\r\n:0\r\n:0\r\n:0\r\n"),
        ("for i = 1, 300000 do local s = string.rep('x', 1000) .. i end return 1", r":1\r\n"),
    ] {
        assert_eq!(client.ask(&[b"EVAL", script.as_bytes(), b"0"]), reply, "{script}");
    }
    // Compiled scripts take memory.
    let numbers: String = (0..150_000).map(|number| format!("{number},")).collect();
    for at in 0..20 {
        let script = format!("local t = {{{numbers}}} return #t + {at}");
        let reply = client.ask(&[b"EVAL", script.as_bytes(), b"0"]);
        assert_eq!(reply, format!(r":{}\r\n", 150_000 + at));
    }
    let most = b"local t = {} for i = 1, 150 do t[i] = string.rep('x', 1e6) .. i end return #t";
    assert_eq!(client.ask(&[b"EVAL", most, b"0"]), r":150\r\n");
}

/// A script can change no table except those that are created for each script, however it gets
/// a reference. Otherwise the scripts of other users would call what it stored there.
#[test]
fn no_table_that_outlives_a_script_can_be_changed() {
    let (_server, mut client) = fresh();
    let script = br"
        local seen, open = {[KEYS] = true, [ARGV] = true}, {}
        local function walk(value, path)
            if type(value) ~= 'table' or seen[value] then return end
            seen[value] = true
            local ways = {
                function() value.planted = 1 end,
                function() rawset(value, 'planted', 1) end,
                function() table.insert(value, 1) end,
                function() table.remove(value) end,
                function() table.sort(value) end,
                function() setmetatable(value, {}) end,
            }
            for at, way in ipairs(ways) do
                if pcall(way) then open[#open + 1] = path .. ' ' .. at end
            end
            for key, inner in pairs(value) do
                walk(inner, path .. '.' .. tostring(key))
                walk(rawget(value, key), path .. '.' .. tostring(key))
            end
            local meta = getmetatable(value)
            walk(meta, path .. ' meta')
            if meta then
                for _, name in ipairs({'__index', '__newindex', '__metatable', '__mode'}) do
                    walk(meta[name], path .. ' ' .. name)
                    walk(rawget(meta, name), path .. ' raw ' .. name)
                end
            end
        end
        walk(_G, '_G')
        walk(getmetatable(''), 'string meta')
        for _, value in ipairs({cjson.null, redis.call, true, 1}) do
            walk(getmetatable(value), 'meta of ' .. type(value))
        end
        return {#open > 0 and table.concat(open, ', ') or 'none', seen[redis] and seen[string] and 1 or 0}";
    assert_eq!(client.ask(&[b"EVAL", script, b"0"]), r"*2\r\n$4\r\nnone\r\n:1\r\n");
}

#[test]
fn the_memory_of_a_script_is_bounded() {
    let (_server, mut client) = fresh();
    for script in [
        "local t = {} for i = 1, 1e9 do t[i] = {i, i} end",
        "local s = 'x' while true do s = s .. s end",
        "return string.rep('x', 2e9)",
        "local f f = function(n) return 1 + f(n + 1) end return f(1)",
        "local t = {} t[1] = t return t",
    ] {
        let reply = client.ask(&[b"EVAL", script.as_bytes(), b"0"]);
        assert!(reply.starts_with('-'), "{script}: {reply:.200}");
    }
    assert_eq!(client.ask(&[b"EVAL", b"return 7", b"0"]), r":7\r\n");
}

/// Functions of Lua 5.1 that would write beyond its own stack or the thread's.
#[test]
fn functions_of_lua_do_not_end_the_process() {
    let (_server, mut client) = fresh();
    let deep = r#"string.rep("a?", 1000001)"#;
    for (script, expected) in [
        ("return {unpack({1,2,3}, -2, 2147483647)}", "too many results to unpack"),
        ("return {unpack({1,2,3}, -2147483648, -2)}", "too many results to unpack"),
        ("return {unpack({1,2,3}, 0/0, 2)}", "too many results to unpack"),
        ("return {unpack({1,2,3}, -1e300, 1e300)}", "too many results to unpack"),
        ("return {unpack({1,2,3}, 'x')}", "bad argument #2 to 'unpack'"),
        ("return #{unpack({}, -2147483648, -2147483600)}", ":0"),
        ("local t = {} for i = 1, 7999 do t[i] = i end return select('#', unpack(t))", ":7999"),
        ("local t = {} for i = 1, 2e4 do t[i] = 'v'..i end return t", r"*20000\r\n$2\r\nv1"),
        ("local t = {} for i = 1, 2e4 do t[i] = {} end return t", r"*20000\r\n*0\r\n*0"),
        ("local t = {} for i = 1, 2e4 do t['k'..i] = 1 end return {set=t}", r"*20000\r\n$"),
        (
            "local t = {} for i = 1, 2e4 do t['k'..i] = i end return cmsgpack.unpack(cmsgpack.pack(t)).k77",
            ":77",
        ),
        ("return select('#', pcall(function() return unpack({}, 1, 7000) end))", ":7001"),
        ("local function f() return pcall(f) end return select('#', f()) > 9", ":1"),
        ("return {unpack({1,2,3}, 2)}", r"*2\r\n:2\r\n:3"),
        ("return {unpack({1,2,3}, 3, 2)}", r"*0\r\n"),
        (&format!("return string.find(string.rep('a', 1000000), {deep})"), "pattern too complex"),
        (&format!("return (string.rep('a', 1000000)):match({deep})"), "pattern too complex"),
        (&format!("return string.gsub(string.rep('a', 2000), {deep}, '')"), "pattern too complex"),
        (&format!("return string.gmatch(string.rep('a', 2000), {deep})()"), "pattern too complex"),
        (&format!("return {{string.find({deep}, {deep}, 1, true)}}"), r"*2\r\n:1"),
        ("return {string.find(string.rep('a', 1000), string.rep('a?', 1000))}", r"*2\r\n:1"),
        ("return {string.gsub('hello', 'l', 'L', 1)}", r"*2\r\n$5\r\nheLlo"),
    ] {
        let reply = client.ask(&[b"EVAL", script.as_bytes(), b"0"]);
        assert!(reply.contains(expected), "{script:.100}: {reply:.200}");
    }
}

/// The script of redis-py's lock, and a transaction that calls a script.
#[test]
fn scripts_of_locks_and_limits_work() {
    let (_server, mut client) = fresh();
    let release = "local token = redis.call('get', KEYS[1])\nif not token or token ~= ARGV[1] then\n return 0\nend\nredis.call('del', KEYS[1])\nreturn 1";
    converse(&mut client, &[("SET lock me", r"+OK\r\n")]);
    assert_eq!(client.ask(&[b"EVAL", release.as_bytes(), b"1", b"lock", b"other"]), r":0\r\n");
    assert_eq!(client.ask(&[b"EVAL", release.as_bytes(), b"1", b"lock", b"me"]), r":1\r\n");
    assert_eq!(client.say("EXISTS lock"), r":0\r\n");
    let limit = "local n = redis.call('incrby', KEYS[1], ARGV[1]) if tonumber(n) == tonumber(ARGV[1]) then redis.call('expire', KEYS[1], ARGV[2]) end return n";
    for expected in [":1", ":2"] {
        let reply = client.ask(&[b"EVAL", limit.as_bytes(), b"1", b"limit", b"1", b"100"]);
        assert_eq!(reply, format!(r"{expected}\r\n"));
    }
    assert_eq!(client.say("TTL limit"), r":100\r\n");
}
