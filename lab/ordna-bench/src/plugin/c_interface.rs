//! The C interface of a plug-in, as `include/ordna_peer.h` declares it.
//!
//! A plug-in is foreign code: that it keeps its side of the header is its user's promise,
//! made with `--peer-lib`. This module keeps ours: the library outlives its indexes, an index its
//! sessions, and no panic crosses into C.

#![expect(unsafe_code, reason = "calls into a C library")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::marker::PhantomData;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

use libloading::Library;
use ordna_base::Key;

/// As in the header.
const ABI: u32 = 1;
/// As in the header.
pub const OK: c_int = 0;
/// As in the header.
pub const OTHER: c_int = 1;
/// As in the header.
pub const UNSUPPORTED: c_int = 2;

type Visit = unsafe extern "C" fn(*mut c_void, *const c_void, usize, u64) -> c_int;

/// The functions of a library, which stays loaded as long as they are reachable.
struct Functions {
    create: unsafe extern "C" fn(c_int, u32) -> *mut c_void,
    destroy: unsafe extern "C" fn(*mut c_void),
    thread_init: unsafe extern "C" fn(*mut c_void) -> *mut c_void,
    thread_fini: unsafe extern "C" fn(*mut c_void, *mut c_void),
    put: unsafe extern "C" fn(*mut c_void, *mut c_void, *const c_void, usize, u64) -> c_int,
    get: unsafe extern "C" fn(*mut c_void, *mut c_void, *const c_void, usize, *mut u64) -> c_int,
    remove: unsafe extern "C" fn(*mut c_void, *mut c_void, *const c_void, usize) -> c_int,
    scan: unsafe extern "C" fn(
        *mut c_void,
        *mut c_void,
        *const c_void,
        usize,
        usize,
        Visit,
        *mut c_void,
    ) -> c_int,
    _library: Library,
}

/// The text of the system's loader, from the error's source, without the path in front.
fn reason(error: &libloading::Error, path: &impl std::fmt::Display) -> String {
    let text = std::error::Error::source(error).map_or(error.to_string(), ToString::to_string);
    text.strip_prefix(&format!("{path}: ")).unwrap_or(&text).to_owned()
}

/// A loaded plug-in.
#[derive(Clone)]
pub struct Plugin(Arc<Functions>);

impl Plugin {
    /// Loads a library; returns it with the name that it gives itself.
    ///
    /// # Errors
    /// It cannot be loaded, is of another version, or lacks a function: names the function.
    pub fn load(path: &Path) -> Result<(String, Self), String> {
        let shown = path.display();
        // SAFETY: runs the library's constructors; the user vouches for it.
        let library = unsafe { Library::new(path) }
            .map_err(|error| format!("cannot load {shown}: {}", reason(&error, &shown)))?;
        macro_rules! function {
            ($name:literal) => {{
                // SAFETY: the header gives the symbol this signature; the pointer is kept with the
                // library, which is unloaded after it.
                let found = unsafe { library.get(concat!("ordna_peer_", $name)) };
                *found.map_err(|_| format!("{shown} has no function ordna_peer_{}", $name))?
            }};
        }
        let abi: unsafe extern "C" fn() -> u32 = function!("abi");
        let name: unsafe extern "C" fn() -> *const c_char = function!("name");
        // SAFETY: no argument; the library is loaded.
        let version = unsafe { abi() };
        if version != ABI {
            return Err(format!("{shown} is of version {version} of ordna_peer.h, not {ABI}"));
        }
        // SAFETY: as above.
        let name = unsafe { name() };
        if name.is_null() {
            return Err(format!("{shown}: ordna_peer_name gives no name"));
        }
        // SAFETY: not null, and by the header a terminated string that lives as long as the
        // library.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        if name.is_empty() || name.contains([' ', ',', '+']) {
            return Err(format!("{shown}: {name:?} is no name for an index"));
        }
        let functions = Functions {
            create: function!("create"),
            destroy: function!("destroy"),
            thread_init: function!("thread_init"),
            thread_fini: function!("thread_fini"),
            put: function!("put"),
            get: function!("get"),
            remove: function!("remove"),
            scan: function!("scan"),
            _library: library,
        };
        Ok((name, Self(Arc::new(functions))))
    }

    /// An empty index; `None` if the library does not take such keys or so many threads.
    pub fn create<K: Kind + ?Sized>(&self, threads: u32) -> Option<Index<K>> {
        // SAFETY: the library is loaded; any arguments are allowed.
        let peer = unsafe { (self.0.create)(<K as Kind>::KIND, threads) };
        Some(Index { plugin: self.clone(), peer: NonNull::new(peer)?, keys: PhantomData })
    }
}

/// A kind of keys as plug-ins see it.
pub trait Kind: Key {
    /// As in the header.
    const KIND: c_int;
    /// Where the key is and how long.
    fn parts(&self) -> (*const c_void, usize);
    /// Calls `f` with the key that the plug-in points to; `None` if it is not of this kind.
    ///
    /// # Safety
    /// `key` points to `len` bytes that stay as they are for the call.
    unsafe fn with<R>(key: *const c_void, len: usize, f: impl FnOnce(&Self) -> R) -> Option<R>;
}

impl Kind for u64 {
    const KIND: c_int = 0;
    fn parts(&self) -> (*const c_void, usize) {
        (std::ptr::from_ref(self).cast(), 8)
    }
    unsafe fn with<R>(key: *const c_void, len: usize, f: impl FnOnce(&Self) -> R) -> Option<R> {
        if len != 8 || key.is_null() {
            return None;
        }
        // SAFETY: the caller promises eight bytes; no alignment is asked for.
        Some(f(&unsafe { key.cast::<u64>().read_unaligned() }))
    }
}

impl Kind for [u8] {
    const KIND: c_int = 1;
    fn parts(&self) -> (*const c_void, usize) {
        (self.as_ptr().cast(), self.len())
    }
    unsafe fn with<R>(key: *const c_void, len: usize, f: impl FnOnce(&Self) -> R) -> Option<R> {
        if len == 0 {
            return Some(f(&[]));
        }
        if key.is_null() {
            return None;
        }
        // SAFETY: the caller promises so many bytes, unchanged for the call.
        Some(f(unsafe { std::slice::from_raw_parts(key.cast(), len) }))
    }
}

/// One index of a plug-in.
pub struct Index<K: ?Sized> {
    plugin: Plugin,
    peer: NonNull<c_void>,
    keys: PhantomData<fn(&K)>,
}

// SAFETY: the header asks for operations that may run on several threads at once; `create` and
// `destroy` need exclusive access, which ownership gives.
unsafe impl<K: ?Sized> Send for Index<K> {}
// SAFETY: as above.
unsafe impl<K: ?Sized> Sync for Index<K> {}

impl<K: ?Sized> Drop for Index<K> {
    fn drop(&mut self) {
        // SAFETY: made by `create`, destroyed once; sessions borrow the index and are gone.
        unsafe { (self.plugin.0.destroy)(self.peer.as_ptr()) }
    }
}

impl<K: Kind + ?Sized> Index<K> {
    /// The calling thread's session.
    pub fn thread(&self) -> Thread<'_, K> {
        // SAFETY: the index lives; the thread's state is ended by `Thread::drop`.
        let state = unsafe { (self.plugin.0.thread_init)(self.peer.as_ptr()) };
        Thread { index: self, state }
    }
}

/// One thread's way into an index. Not `Send`: it stays on the thread that made it.
pub struct Thread<'a, K: Kind + ?Sized> {
    index: &'a Index<K>,
    state: *mut c_void,
}

impl<K: Kind + ?Sized> Drop for Thread<'_, K> {
    fn drop(&mut self) {
        // SAFETY: `state` is from `thread_init` of this index, ended once, on its own thread.
        unsafe { (self.index.plugin.0.thread_fini)(self.index.peer.as_ptr(), self.state) }
    }
}

/// Where the entries of a scan go.
struct Sink<'a, K: ?Sized> {
    each: &'a mut dyn FnMut(&K, u64),
    left: usize,
    /// An entry with a key that is not of the kind, or more entries than were asked for.
    broken: bool,
    /// The payload of a panic of `each`.
    panic: Option<Box<dyn std::any::Any + Send>>,
}

unsafe extern "C" fn visit<K: Kind + ?Sized>(
    context: *mut c_void,
    key: *const c_void,
    len: usize,
    value: u64,
) -> c_int {
    // SAFETY: `Thread::scan` passes its own sink, alive for the scan and used by no other thread.
    let sink = unsafe { &mut *context.cast::<Sink<'_, K>>() };
    if sink.left == 0 || sink.panic.is_some() {
        sink.broken = true;
        return 0;
    }
    sink.left -= 1;
    // A panic must not cross the library's frames.
    let seen = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        // SAFETY: the header promises `len` bytes at `key` for the call.
        unsafe { K::with(key, len, |key| (sink.each)(key, value)) }
    }));
    match seen {
        Ok(seen) => sink.broken |= seen.is_none(),
        Err(panic) => sink.panic = Some(panic),
    }
    c_int::from(sink.left > 0 && !sink.broken && sink.panic.is_none())
}

impl<K: Kind + ?Sized> Thread<'_, K> {
    /// The library's answer.
    pub fn put(&self, key: &K, value: u64) -> c_int {
        let (key, len) = key.parts();
        // SAFETY: index and thread state are alive; `len` bytes are at `key` for the call.
        unsafe { (self.index.plugin.0.put)(self.index.peer.as_ptr(), self.state, key, len, value) }
    }

    /// The library's answer, and the value if it is [`OK`].
    pub fn get(&self, key: &K) -> (c_int, u64) {
        let (key, len) = key.parts();
        let mut value = 0;
        // SAFETY: as in `put`; `value` may be written.
        let answer = unsafe {
            let out = &raw mut value;
            (self.index.plugin.0.get)(self.index.peer.as_ptr(), self.state, key, len, out)
        };
        (answer, value)
    }

    /// The library's answer.
    pub fn remove(&self, key: &K) -> c_int {
        let (key, len) = key.parts();
        // SAFETY: as in `put`.
        unsafe { (self.index.plugin.0.remove)(self.index.peer.as_ptr(), self.state, key, len) }
    }

    /// The library's answer; anything but [`OK`] if it broke the rules of the header.
    pub fn scan(&self, from: &K, limit: usize, each: &mut dyn FnMut(&K, u64)) -> c_int {
        let (key, len) = from.parts();
        let mut sink = Sink { each, left: limit, broken: false, panic: None };
        let context = (&raw mut sink).cast::<c_void>();
        // SAFETY: as in `put`; the sink outlives the call and is used through `visit` only.
        let answer = unsafe {
            let peer = self.index.peer.as_ptr();
            (self.index.plugin.0.scan)(peer, self.state, key, len, limit, visit::<K>, context)
        };
        if let Some(panic) = sink.panic {
            std::panic::resume_unwind(panic);
        }
        if sink.broken { -1 } else { answer }
    }
}
