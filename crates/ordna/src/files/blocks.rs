//! Files as chains of blocks with checksums. `docs/FORMAT.md` has definitions, invariants and byte
//! tables.
//!
//! # Contract
//! A reader accepts arbitrary bytes. It returns what was written, or an error that names the file
//! and the offset. It allocates no more memory than the file's length justifies.

use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ordna_base::checksum::crc32c_append;

use ordna_base::sync::{fault, notice};

use super::storage::{OutFile, Storage, write_all};
use crate::files::error::BackupError;
use ordna_base::encoding::Encoding;

/// The format version that this program writes, and the latest version that it can read.
pub const VERSION: u32 = 2;
/// Length of a file's header in bytes. It is the same in every version.
pub const FILE_HEADER: usize = 48;
/// Length of a block's header, in bytes.
pub const BLOCK_HEADER: usize = 56;
/// The first bytes of each block.
const MARKER: [u8; 4] = *b"OBLK";
/// Maximum ratio of LZ4 compression. A block that claims a higher one is damaged.
const MOST_SHRINKAGE: u64 = 255;
/// Maximum ratio of Zstandard: 128 KiB of equal bytes are compressed to four bytes.
const MOST_SHRINKAGE_ZSTD: u64 = 1 << 15;
/// Compression level of Zstandard. Its default is 3; 1 keeps pace with a disk.
#[cfg(feature = "zstd")]
const ZSTD_LEVEL: i32 = 1;

/// The compression of blocks.
///
/// ```
/// use ordna::BackupOptions;
/// use ordna::durability::Compression;
///
/// let options = BackupOptions::new().compression(Compression::Lz4);
/// # let _ = options;
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Compression {
    /// No compression.
    #[default]
    None,
    /// LZ4 block format. A block that LZ4 does not shrink is stored uncompressed.
    Lz4,
    /// Zstandard. A block that it does not shrink is stored uncompressed. Needs the feature `zstd`,
    /// also for reading.
    Zstd,
}

impl Compression {
    fn number(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Lz4 => 1,
            Self::Zstd => 2,
        }
    }

    /// Returns an error if this build does not support the compression.
    fn check(self, path: &Path) -> Result<(), BackupError> {
        if self == Self::Zstd && !cfg!(feature = "zstd") {
            return Err(BackupError::Unsupported { path: path.to_owned(), feature: "zstd" });
        }
        Ok(())
    }

    /// Compresses `payload` into `out`. Returns `None` if the result would not be smaller or does
    /// not fit.
    fn squeeze(self, payload: &[u8], out: &mut [u8]) -> Option<usize> {
        let len = match self {
            Self::None => return None,
            Self::Lz4 => lz4_flex::block::compress_into(payload, out).ok(),
            #[cfg(feature = "zstd")]
            Self::Zstd => zstd::bulk::compress_to_buffer(payload, out, ZSTD_LEVEL).ok(),
            #[cfg(not(feature = "zstd"))]
            Self::Zstd => None,
        };
        len.filter(|len| *len < payload.len())
    }

    /// Decompresses a payload to `raw` bytes. Errors are texts.
    fn unpack(self, payload: Vec<u8>, raw: u64) -> Result<Vec<u8>, String> {
        let most = match self {
            Self::None => return Ok(payload),
            Self::Lz4 => MOST_SHRINKAGE,
            Self::Zstd => MOST_SHRINKAGE_ZSTD,
        };
        if raw > (payload.len() as u64).saturating_mul(most).saturating_add(64) {
            return Err("a block claims more than it can hold".to_owned());
        }
        let unpacked = match self {
            Self::None => Ok(payload),
            Self::Lz4 => {
                let raw = usize::try_from(raw).unwrap_or(usize::MAX);
                lz4_flex::block::decompress(&payload, raw).map_err(|error| error.to_string())
            }
            Self::Zstd => unpack_zstd(&payload, raw),
        };
        unpacked.map_err(|error| format!("a block does not decompress: {error}"))
    }
}

/// Decompresses as a stream, so that memory grows with the actual output and not with the length
/// that the header claims.
#[cfg(feature = "zstd")]
fn unpack_zstd(payload: &[u8], raw: u64) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let stream = zstd::stream::Decoder::with_buffer(payload).map_err(|error| error.to_string())?;
    let read = stream.take(raw.saturating_add(1)).read_to_end(&mut bytes);
    read.map(|_| bytes).map_err(|error| error.to_string())
}

#[cfg(not(feature = "zstd"))]
fn unpack_zstd(_: &[u8], _: u64) -> Result<Vec<u8>, String> {
    // `BlockReader` has already rejected the block.
    Err("this build has no zstd".to_owned())
}

/// The kind of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// The entries of a range of keys, in order.
    Shard,
    /// States of keys that the shards of a backup may have missed.
    Delta,
    /// A segment of the log.
    Log,
    /// Records of the log that are not in any segment.
    Tail,
}

impl FileKind {
    fn magic(self) -> [u8; 8] {
        match self {
            Self::Shard => *b"ORDNASHD",
            Self::Delta => *b"ORDNADLT",
            Self::Log => *b"ORDNALOG",
            Self::Tail => *b"ORDNATAL",
        }
    }
}

/// The header of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileHeader {
    pub kind: FileKind,
    pub key_kind: u8,
    pub value_kind: u8,
    /// A random number that is part of the checksum of each block header, so that a block that was
    /// copied from another file is detected.
    pub salt: u64,
    /// The number of the shard or segment.
    pub number: u64,
}

impl FileHeader {
    /// Creates the header of a new file.
    pub fn new<K: Encoding + ?Sized, V: Encoding + ?Sized>(kind: FileKind, number: u64) -> Self {
        let salt = RandomState::new().hash_one(number);
        Self { kind, key_kind: K::KIND_NUMBER, value_kind: V::KIND_NUMBER, salt, number }
    }

    pub fn encode(&self) -> [u8; FILE_HEADER] {
        let mut bytes = [0; FILE_HEADER];
        bytes[..8].copy_from_slice(&self.kind.magic());
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12] = self.key_kind;
        bytes[13] = self.value_kind;
        bytes[16..24].copy_from_slice(&self.salt.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.number.to_le_bytes());
        let crc = crc32c_append(0, &bytes[..44]);
        bytes[44..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes the header of a file of this kind.
    ///
    /// # Errors
    /// [`BackupError::Damaged`], or an error if the format is newer.
    pub fn decode(
        bytes: &[u8; FILE_HEADER],
        kind: FileKind,
        path: &Path,
    ) -> Result<Self, BackupError> {
        if bytes[..8] != kind.magic() {
            return Err(BackupError::damaged(path, 0, format!("no {kind:?} file of Ordna")));
        }
        let crc = crc32c_append(0, &bytes[..44]);
        if notice!("damage.header.crc", word32(bytes, 44) != crc) {
            return Err(BackupError::damaged(path, 0, "the checksum of the file header differs"));
        }
        let version = word32(bytes, 8);
        if notice!("damage.header.version", version > VERSION) {
            let path = path.to_owned();
            return Err(BackupError::NewerFormat { path, found: version, known: VERSION });
        }
        Ok(Self {
            kind,
            key_kind: bytes[12],
            value_kind: bytes[13],
            salt: word64(bytes, 16),
            number: word64(bytes, 24),
        })
    }

    /// Returns an error if the file has other types of keys or values.
    pub fn check_kinds<K: Encoding + ?Sized, V: Encoding + ?Sized>(
        &self,
        path: &Path,
    ) -> Result<(), BackupError> {
        if (self.key_kind, self.value_kind) == (K::KIND_NUMBER, V::KIND_NUMBER) {
            return Ok(());
        }
        let name = |kind| match kind {
            u64::KIND_NUMBER => u64::KIND_NAME,
            <[u8]>::KIND_NUMBER => <[u8]>::KIND_NAME,
            _ => "unknown kinds",
        };
        Err(BackupError::OtherKind {
            path: path.to_owned(),
            found: format!("{} by {}", name(self.value_kind), name(self.key_kind)),
            expected: format!("{} by {}", V::KIND_NAME, K::KIND_NAME),
        })
    }
}

fn word32(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..).and_then(<[u8]>::first_chunk);
    u32::from_le_bytes(word.copied().unwrap_or_default())
}

fn word64(bytes: &[u8], at: usize) -> u64 {
    let word = bytes.get(at..).and_then(<[u8]>::first_chunk);
    u64::from_le_bytes(word.copied().unwrap_or_default())
}

/// The kind of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockKind {
    /// Records.
    Data,
    /// The end of the file.
    End,
    /// The log continues in the next segment.
    Continued,
}

impl BlockKind {
    fn number(self) -> u8 {
        match self {
            Self::Data => 1,
            Self::End => 2,
            Self::Continued => 3,
        }
    }
}

/// The header of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct BlockHeader {
    kind: BlockKind,
    compression: Compression,
    start: u64,
    stored: u64,
    raw: u64,
    count: u64,
    synced: u64,
    payload_crc: u32,
}

impl BlockHeader {
    fn encode(&self, salt: u64) -> [u8; BLOCK_HEADER] {
        let mut bytes = [0; BLOCK_HEADER];
        bytes[..4].copy_from_slice(&MARKER);
        bytes[4] = self.kind.number();
        bytes[5] = self.compression.number();
        for (at, word) in
            [self.start, self.stored, self.raw, self.count, self.synced].into_iter().enumerate()
        {
            bytes[8 + 8 * at..16 + 8 * at].copy_from_slice(&word.to_le_bytes());
        }
        bytes[48..52].copy_from_slice(&self.payload_crc.to_le_bytes());
        let crc = header_crc(salt, &bytes);
        bytes[52..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes a header. Returns `None` if the bytes are not a block header of a file with this
    /// salt.
    fn decode(bytes: &[u8; BLOCK_HEADER], salt: u64) -> Option<Self> {
        let crc_differs = word32(bytes, 52) != header_crc(salt, bytes);
        if bytes[..4] != MARKER || notice!("damage.block.header_crc", crc_differs) {
            return None;
        }
        let kind = match bytes[4] {
            1 => BlockKind::Data,
            2 => BlockKind::End,
            3 => BlockKind::Continued,
            _ => return None,
        };
        let compression = match bytes[5] {
            0 => Compression::None,
            1 => Compression::Lz4,
            2 => Compression::Zstd,
            _ => return None,
        };
        Some(Self {
            kind,
            compression,
            start: word64(bytes, 8),
            stored: word64(bytes, 16),
            raw: word64(bytes, 24),
            count: word64(bytes, 32),
            synced: word64(bytes, 40),
            payload_crc: word32(bytes, 48),
        })
    }
}

fn header_crc(salt: u64, bytes: &[u8; BLOCK_HEADER]) -> u32 {
    crc32c_append(crc32c_append(0, &salt.to_le_bytes()), &bytes[..52])
}

/// Records that are collected for a block, with room for the block's header before them.
#[derive(Debug)]
pub struct Frame {
    bytes: Vec<u8>,
    /// Number of records.
    pub count: u64,
}

impl Default for Frame {
    fn default() -> Self {
        Self { bytes: vec![0; BLOCK_HEADER], count: 0 }
    }
}

impl Frame {
    /// Returns the buffer to which records are appended. Its contents must not be changed.
    pub fn records(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Returns the size of the records in bytes.
    pub fn len(&self) -> usize {
        self.bytes.len() - BLOCK_HEADER
    }

    /// Appends encoded records.
    pub fn extend(&mut self, records: &[u8], count: u64) {
        self.bytes.extend_from_slice(records);
        self.count += count;
    }

    /// Removes the records, but keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.truncate(BLOCK_HEADER);
        self.count = 0;
    }
}

/// Writes the blocks of a file.
#[derive(Debug)]
pub struct BlockWriter {
    file: Arc<dyn OutFile>,
    path: PathBuf,
    salt: u64,
    chain: u32,
    /// Position of the next block.
    position: u64,
    records: u64,
    written: u64,
    compression: Compression,
    squeezed: Vec<u8>,
}

impl BlockWriter {
    /// Creates a file with its header.
    pub fn create(
        storage: &dyn Storage,
        path: &Path,
        header: &FileHeader,
        compression: Compression,
    ) -> Result<Self, BackupError> {
        compression.check(path)?;
        let file = storage.create(path).map_err(BackupError::io(path, "create"))?;
        write_all(&*file, &header.encode()).map_err(BackupError::io(path, "write"))?;
        Ok(Self {
            file: file.into(),
            path: path.to_owned(),
            salt: header.salt,
            chain: first_chain(header.salt),
            position: 0,
            records: 0,
            written: FILE_HEADER as u64,
            compression,
            squeezed: Vec::new(),
        })
    }

    /// Makes the first block begin at a position other than 0.
    pub fn begin_at(&mut self, position: u64) {
        self.position = position;
    }

    /// Makes the first block begin at `position`, and appends a block without records there. This
    /// block records where the segment begins and what was durable at that time, even if no record
    /// follows.
    ///
    /// # Errors
    /// I/O errors of the file.
    pub fn start_at(&mut self, position: u64, synced: u64) -> Result<(), BackupError> {
        self.begin_at(position);
        if fault!("damage.segment.start_block") {
            return Ok(());
        }
        self.data(&mut Frame::default(), synced)
    }

    /// Returns the salt of the file.
    pub fn salt(&self) -> u64 {
        self.salt
    }

    /// Returns the position of the next block.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Appends the frame as one block. Everything below the position `synced` is durable.
    ///
    /// # Errors
    /// I/O errors of the file. A part of the block may have been written.
    pub fn data(&mut self, frame: &mut Frame, synced: u64) -> Result<(), BackupError> {
        self.block(BlockKind::Data, frame, synced)
    }

    /// Appends the block that ends the file and holds the number of all records.
    pub fn finish(&mut self, kind: BlockKind, synced: u64) -> Result<(), BackupError> {
        let mut frame = Frame { count: self.records, ..Frame::default() };
        self.block(kind, &mut frame, synced)
    }

    fn block(
        &mut self,
        kind: BlockKind,
        frame: &mut Frame,
        synced: u64,
    ) -> Result<(), BackupError> {
        let raw = frame.len() as u64;
        let mut compression = Compression::None;
        if self.compression != Compression::None && raw > 0 {
            let payload = &frame.bytes[BLOCK_HEADER..];
            // The maximum for LZ4. Zstandard needs less, or fails because there is no room.
            let most = lz4_flex::block::get_maximum_output_size(payload.len());
            self.squeezed.resize(BLOCK_HEADER + most, 0);
            if let Some(len) = self.compression.squeeze(payload, &mut self.squeezed[BLOCK_HEADER..])
            {
                self.squeezed.truncate(BLOCK_HEADER + len);
                compression = self.compression;
            }
        }
        let bytes = match compression {
            Compression::None => &mut frame.bytes,
            _ => &mut self.squeezed,
        };
        let payload = &bytes[BLOCK_HEADER..];
        let payload_crc = crc32c_append(self.chain, payload);
        let header = BlockHeader {
            kind,
            compression,
            start: self.position,
            stored: payload.len() as u64,
            raw,
            count: frame.count,
            synced,
            payload_crc,
        };
        bytes[..BLOCK_HEADER].copy_from_slice(&header.encode(self.salt));
        write_all(&*self.file, bytes).map_err(BackupError::io(&self.path, "write"))?;
        self.written += bytes.len() as u64;
        self.chain = payload_crc;
        self.position += raw;
        if kind == BlockKind::Data {
            self.records += frame.count;
        }
        Ok(())
    }

    /// Returns the file, for a sync.
    pub fn file(&self) -> Arc<dyn OutFile> {
        Arc::clone(&self.file)
    }

    /// Makes the file durable.
    pub fn sync(&self) -> Result<(), BackupError> {
        self.file.sync().map_err(BackupError::io(&self.path, "sync"))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the number of bytes of the file so far.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Returns the number of records so far.
    pub fn count(&self) -> u64 {
        self.records
    }

    /// Returns the checksum of all payloads so far.
    pub fn chain(&self) -> u32 {
        self.chain
    }
}

fn first_chain(salt: u64) -> u32 {
    crc32c_append(0, &salt.to_le_bytes())
}

/// A block that was read and checked.
#[derive(Debug)]
pub struct Block {
    pub kind: BlockKind,
    /// Number of records; in an end block, the number of records of the whole file.
    pub count: u64,
    /// Position of the block in the file.
    pub offset: u64,
    pub payload: Vec<u8>,
}

/// Reads the blocks of a file.
pub struct BlockReader {
    input: Box<dyn Read + Send>,
    path: PathBuf,
    pub header: FileHeader,
    len: u64,
    /// Position of the next block in the file.
    offset: u64,
    position: u64,
    chain: u32,
    records: u64,
    /// A payload whose memory is reused for the next block.
    spare: Vec<u8>,
}

impl std::fmt::Debug for BlockReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlockReader").field("path", &self.path).finish_non_exhaustive()
    }
}

impl BlockReader {
    /// Opens a file whose first block begins at `position`, and checks its header.
    pub fn open(
        storage: &dyn Storage,
        path: &Path,
        kind: FileKind,
        position: u64,
    ) -> Result<Self, BackupError> {
        let (mut input, len) = storage.open(path).map_err(BackupError::io(path, "open"))?;
        if len < FILE_HEADER as u64 {
            return Err(BackupError::damaged(path, 0, "the file header is cut short"));
        }
        let mut bytes = [0; FILE_HEADER];
        input.read_exact(&mut bytes).map_err(BackupError::io(path, "read"))?;
        let header = FileHeader::decode(&bytes, kind, path)?;
        Ok(Self {
            input,
            path: path.to_owned(),
            header,
            len,
            offset: FILE_HEADER as u64,
            position,
            chain: first_chain(header.salt),
            records: 0,
            spare: Vec::new(),
        })
    }

    /// Takes a payload back, so that the next block reuses its memory.
    pub fn give_back(&mut self, payload: Vec<u8>) {
        self.spare = payload;
    }

    /// Returns the next block, or `None` at the end of the file or after an error.
    ///
    /// # Errors
    /// [`BackupError::Damaged`] with the offset of the first block that is not as it was written,
    /// or an I/O error.
    pub fn read_block(&mut self) -> Result<Option<Block>, BackupError> {
        let offset = self.offset;
        let left = self.len - offset;
        if left == 0 {
            return Ok(None);
        }
        let damaged = |what: &str| Err(BackupError::damaged(&self.path, offset, what));
        if left < BLOCK_HEADER as u64 {
            return damaged("a block header is cut short");
        }
        let mut bytes = [0; BLOCK_HEADER];
        self.input.read_exact(&mut bytes).map_err(BackupError::io(&self.path, "read"))?;
        let Some(header) = BlockHeader::decode(&bytes, self.header.salt) else {
            return damaged("no block header, or its checksum differs");
        };
        if header.stored > left - BLOCK_HEADER as u64 {
            return damaged("a block is cut short");
        }
        if header.start != self.position {
            return damaged("this block does not follow the one before it");
        }
        let stored = usize::try_from(header.stored).unwrap_or(usize::MAX);
        let mut payload = std::mem::take(&mut self.spare);
        if payload.capacity() < stored {
            // New memory from the system is zeroed already.
            payload = vec![0; stored];
        }
        payload.resize(stored, 0);
        self.input.read_exact(&mut payload).map_err(BackupError::io(&self.path, "read"))?;
        let crc = crc32c_append(self.chain, &payload);
        if notice!("damage.block.payload_crc", crc != header.payload_crc) {
            return damaged("the checksum of a block differs");
        }
        header.compression.check(&self.path)?;
        let payload = match header.compression.unpack(payload, header.raw) {
            Ok(payload) => payload,
            Err(what) => return damaged(&what),
        };
        if payload.len() as u64 != header.raw {
            return damaged("a block has another length than its header says");
        }
        match header.kind {
            BlockKind::Data => self.records += header.count,
            BlockKind::End | BlockKind::Continued if header.count != self.records => {
                return damaged("the last block counts other records than were read");
            }
            BlockKind::End | BlockKind::Continued => {}
        }
        self.offset += BLOCK_HEADER as u64 + header.stored;
        self.position += header.raw;
        self.chain = header.payload_crc;
        Ok(Some(Block { kind: header.kind, count: header.count, offset, payload }))
    }

    /// Returns the position of the next block in the file.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the log position of the next block.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Returns the number of records read so far.
    pub fn count(&self) -> u64 {
        self.records
    }

    /// Returns the checksum of all payloads read so far.
    pub fn chain(&self) -> u32 {
        self.chain
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the length of the file.
    pub fn len(&self) -> u64 {
        self.len
    }
}

/// Returns the largest `synced` of all block headers at or after `from`, at any offset. It shows
/// whether the data before a damaged place had once been durable, because later blocks record that.
/// O(length of the rest).
pub fn latest_synced(
    storage: &dyn Storage,
    path: &Path,
    salt: u64,
    from: u64,
) -> Result<Option<u64>, BackupError> {
    const STRETCH: usize = 1 << 20;
    let (mut input, _) = storage.open(path).map_err(BackupError::io(path, "open"))?;
    let read = BackupError::io(path, "read");
    io::copy(&mut (&mut input).take(from), &mut io::sink()).map_err(read)?;
    let mut latest = None;
    let mut window: Vec<u8> = Vec::new();
    loop {
        let read = BackupError::io(path, "read");
        let more = (&mut input).take(STRETCH as u64).read_to_end(&mut window).map_err(read)?;
        for at in 0..window.len().saturating_sub(BLOCK_HEADER - 1) {
            if let Some(bytes) = window[at..].first_chunk::<BLOCK_HEADER>()
                && let Some(header) = BlockHeader::decode(bytes, salt)
            {
                latest = latest.max(Some(header.synced));
            }
        }
        if more == 0 {
            return Ok(latest);
        }
        window.drain(..window.len().saturating_sub(BLOCK_HEADER - 1));
    }
}
