//! The C interface of a plug-in, as `include/ordna_peer.h` declares it.
//!
//! A plug-in is foreign code. The user who passes it with `--peer-lib` guarantees that it conforms
//! to the header. This module guarantees the rest: the library outlives its indexes, an index
//! outlives its sessions, and no panic crosses into C.

#![expect(unsafe_code, reason = "calls into a C library")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::marker::PhantomData;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

use libloading::Library;
use ordna_base::Key;

/// Version of the interface, as in the header.
const ABI: u32 = 1;
/// Result of a successful operation, as in the header.
pub const OK: c_int = 0;
/// Result of a put that has replaced a value, or of an operation whose key is absent, as in the
/// header.
pub const OTHER: c_int = 1;
/// Result of an operation that the plug-in does not support, as in the header.
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

/// Returns the text of the system's loader, from the error's source, without the path at its
/// beginning.
fn reason(error: &libloading::Error, path: &impl std::fmt::Display) -> String {
    let text = std::error::Error::source(error).map_or(error.to_string(), ToString::to_string);
    text.strip_prefix(&format!("{path}: ")).unwrap_or(&text).to_owned()
}

/// A loaded plug-in.
#[derive(Clone)]
pub struct Plugin(Arc<Functions>);

impl Plugin {
    /// Loads a library. Returns it with the name that it reports.
    ///
    /// # Errors
    /// Returns an error if the library cannot be loaded, has another version, or lacks a function.
    /// The error names the function.
    pub fn load(path: &Path) -> Result<(String, Self), String> {
        let shown = path.display();
        // SAFETY: this runs the constructors of the library, for which the user is responsible.
        let library = unsafe { Library::new(path) }
            .map_err(|error| format!("cannot load {shown}: {}", reason(&error, &shown)))?;
        macro_rules! function {
            ($name:literal) => {{
                // SAFETY: the symbol has this signature in the header. The pointer is stored with
                // the library, which is unloaded after it.
                let found = unsafe { library.get(concat!("ordna_peer_", $name)) };
                *found.map_err(|_| format!("{shown} has no function ordna_peer_{}", $name))?
            }};
        }
        let abi: unsafe extern "C" fn() -> u32 = function!("abi");
        let name: unsafe extern "C" fn() -> *const c_char = function!("name");
        // SAFETY: the function has no arguments, and the library is loaded.
        let version = unsafe { abi() };
        if version != ABI {
            return Err(format!("{shown} is of version {version} of ordna_peer.h, not {ABI}"));
        }
        // SAFETY: as above.
        let name = unsafe { name() };
        if name.is_null() {
            return Err(format!("{shown}: ordna_peer_name gives no name"));
        }
        // SAFETY: the pointer is not null. According to the header, it refers to a terminated
        // string that lives as long as the library.
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

    /// Creates an empty index. Returns `None` if the library does not support such keys or this
    /// number of threads.
    pub fn create<K: Kind + ?Sized>(&self, threads: u32) -> Option<Index<K>> {
        // SAFETY: the library is loaded, and any arguments are allowed.
        let peer = unsafe { (self.0.create)(<K as Kind>::KIND, threads) };
        Some(Index { plugin: self.clone(), peer: NonNull::new(peer)?, keys: PhantomData })
    }
}

/// A type of keys in the interface of plug-ins.
pub trait Kind: Key {
    /// Number of the type, as in the header.
    const KIND: c_int;
    /// Returns the address and the length of the key.
    fn parts(&self) -> (*const c_void, usize);
    /// Calls `f` with the key to which the plug-in points. Returns `None` if it is not of this
    /// type.
    ///
    /// # Safety
    /// `key` points to `len` bytes that do not change during the call.
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
        // SAFETY: the caller guarantees eight bytes; no alignment is required.
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
        // SAFETY: the caller guarantees this number of bytes, unchanged during the call.
        Some(f(unsafe { std::slice::from_raw_parts(key.cast(), len) }))
    }
}

/// An index of a plug-in.
pub struct Index<K: ?Sized> {
    plugin: Plugin,
    peer: NonNull<c_void>,
    keys: PhantomData<fn(&K)>,
}

// SAFETY: the header requires that operations may run concurrently on several threads. `create` and
// `destroy` need exclusive access, which ownership ensures.
unsafe impl<K: ?Sized> Send for Index<K> {}
// SAFETY: as above.
unsafe impl<K: ?Sized> Sync for Index<K> {}

impl<K: ?Sized> Drop for Index<K> {
    fn drop(&mut self) {
        // SAFETY: created by `create` and destroyed once; sessions borrow the index, so none is
        // left.
        unsafe { (self.plugin.0.destroy)(self.peer.as_ptr()) }
    }
}

impl<K: Kind + ?Sized> Index<K> {
    /// Creates the session of the calling thread.
    pub fn thread(&self) -> Thread<'_, K> {
        // SAFETY: the index is alive, and `Thread::drop` ends the thread's state.
        let state = unsafe { (self.plugin.0.thread_init)(self.peer.as_ptr()) };
        Thread { index: self, state }
    }
}

/// The session of a thread. It is not `Send`: it stays on the thread that created it.
pub struct Thread<'a, K: Kind + ?Sized> {
    index: &'a Index<K>,
    state: *mut c_void,
}

impl<K: Kind + ?Sized> Drop for Thread<'_, K> {
    fn drop(&mut self) {
        // SAFETY: `state` came from `thread_init` of this index, and is ended once, on its own
        // thread.
        unsafe { (self.index.plugin.0.thread_fini)(self.index.peer.as_ptr(), self.state) }
    }
}

/// The receiver of the entries of a scan.
struct Sink<'a, K: ?Sized> {
    each: &'a mut dyn FnMut(&K, u64),
    left: usize,
    /// Whether there was an entry whose key has another type, or more entries than requested.
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
    // SAFETY: `Thread::scan` passes its own sink, which is alive during the scan and not used by
    // other threads.
    let sink = unsafe { &mut *context.cast::<Sink<'_, K>>() };
    if sink.left == 0 || sink.panic.is_some() {
        sink.broken = true;
        return 0;
    }
    sink.left -= 1;
    // A panic must not cross the frames of the library.
    let seen = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        // SAFETY: the header guarantees `len` bytes at `key` during the call.
        unsafe { K::with(key, len, |key| (sink.each)(key, value)) }
    }));
    match seen {
        Ok(seen) => sink.broken |= seen.is_none(),
        Err(panic) => sink.panic = Some(panic),
    }
    c_int::from(sink.left > 0 && !sink.broken && sink.panic.is_none())
}

impl<K: Kind + ?Sized> Thread<'_, K> {
    /// Returns the library's answer.
    pub fn put(&self, key: &K, value: u64) -> c_int {
        let (key, len) = key.parts();
        // SAFETY: index and thread state are alive, and `len` bytes are at `key` during the call.
        unsafe { (self.index.plugin.0.put)(self.index.peer.as_ptr(), self.state, key, len, value) }
    }

    /// Returns the library's answer, and the value if the answer is [`OK`].
    pub fn get(&self, key: &K) -> (c_int, u64) {
        let (key, len) = key.parts();
        let mut value = 0;
        // SAFETY: as in `put`, and `value` may be written.
        let answer = unsafe {
            let out = &raw mut value;
            (self.index.plugin.0.get)(self.index.peer.as_ptr(), self.state, key, len, out)
        };
        (answer, value)
    }

    /// Returns the library's answer.
    pub fn remove(&self, key: &K) -> c_int {
        let (key, len) = key.parts();
        // SAFETY: as in `put`.
        unsafe { (self.index.plugin.0.remove)(self.index.peer.as_ptr(), self.state, key, len) }
    }

    /// Returns the library's answer, which is not [`OK`] if the library has violated the rules of
    /// the header.
    pub fn scan(&self, from: &K, limit: usize, each: &mut dyn FnMut(&K, u64)) -> c_int {
        let (key, len) = from.parts();
        let mut sink = Sink { each, left: limit, broken: false, panic: None };
        let context = (&raw mut sink).cast::<c_void>();
        // SAFETY: as in `put`. The sink outlives the call and is used only through `visit`.
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
