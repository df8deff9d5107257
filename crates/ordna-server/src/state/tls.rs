//! Certificates and keys of the encrypted listener. They can be replaced while the server runs.
//!
//! A connection keeps the certificates with which its handshake was made. The files are read
//! completely and validated before they replace the former ones.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ordna::sync::Lock;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use tokio_rustls::rustls::{self, RootCertStore, ServerConfig};

use crate::state::config::TlsConfig;

/// The reason why certificates and keys cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{file}: {source}")]
    File {
        /// The file.
        file: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file is not PEM, or has no key.
    #[error("{file}: {source}")]
    Pem {
        /// The file.
        file: PathBuf,
        /// The error in its content.
        source: pem::Error,
    },
    /// A file has no certificate.
    #[error("{file} holds no certificate")]
    NoCertificate {
        /// The file.
        file: PathBuf,
    },
    /// A certificate of an authority cannot be used.
    #[error("{file}: {source}")]
    Authority {
        /// The file.
        file: PathBuf,
        /// The error of the certificate.
        source: rustls::Error,
    },
    /// The certificates of authorities cannot be used together.
    #[error("{file}: {source}")]
    Authorities {
        /// The file.
        file: PathBuf,
        /// The error of the certificates.
        source: VerifierBuilderError,
    },
    /// Certificate and key do not match, or cannot be used.
    #[error("{certificate} and {key}: {source}")]
    Pair {
        /// The file of the certificate.
        certificate: PathBuf,
        /// The file of the key.
        key: PathBuf,
        /// The error of certificate or key.
        source: rustls::Error,
    },
}

/// Maximum size of a file in bytes. It is read while no command is executed.
const MOST_BYTES: u64 = 16 << 20;

/// Reads a file if it is a regular file. A pipe might never end or never answer.
fn read(file: &Path) -> Result<Vec<u8>, TlsError> {
    let read = || {
        let found = std::fs::metadata(file)?;
        if !found.is_file() || found.len() > MOST_BYTES {
            let text = format!("not a regular file of at most {MOST_BYTES} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        std::fs::read(file)
    };
    read().map_err(|source| TlsError::File { file: file.to_owned(), source })
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let content = read(file)?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&content).collect();
    let all = all.map_err(|source| TlsError::Pem { file: file.to_owned(), source })?;
    if all.is_empty() { Err(TlsError::NoCertificate { file: file.to_owned() }) } else { Ok(all) }
}

/// Reads the files and creates the acceptor of encrypted connections.
fn acceptor(tls: &TlsConfig) -> Result<TlsAcceptor, TlsError> {
    let pair = |source| TlsError::Pair {
        certificate: tls.certificate.clone(),
        key: tls.key.clone(),
        source,
    };
    let chain = certificates(&tls.certificate)?;
    let key = PrivateKeyDer::from_pem_slice(&read(&tls.key)?);
    let key = key.map_err(|source| TlsError::Pem { file: tls.key.clone(), source })?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(pair)?;
    let builder = match &tls.client_authorities {
        None => builder.with_no_client_auth(),
        Some(file) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(file)? {
                let added = roots.add(certificate);
                added.map_err(|source| TlsError::Authority { file: file.clone(), source })?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            let verifier = verifier.build();
            builder.with_client_cert_verifier(
                verifier.map_err(|source| TlsError::Authorities { file: file.clone(), source })?,
            )
        }
    };
    let config = builder.with_single_cert(chain, key).map_err(pair)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// The files of certificates and keys, with their contents at the time of reading.
#[derive(Clone)]
pub struct TlsFiles {
    pub config: TlsConfig,
    acceptor: TlsAcceptor,
}

impl std::fmt::Debug for TlsFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsFiles").field("config", &self.config).finish_non_exhaustive()
    }
}

impl TlsFiles {
    /// Reads and checks the files.
    ///
    /// # Errors
    /// [`TlsError`]
    pub fn read(config: TlsConfig) -> Result<Self, TlsError> {
        Ok(Self { acceptor: acceptor(&config)?, config })
    }
}

/// The certificates in use.
#[derive(Debug)]
pub struct Tls(Lock<TlsFiles>);

impl Tls {
    pub fn new(files: TlsFiles) -> Self {
        Self(Lock::new(files))
    }

    /// Returns the acceptor of the next connection.
    pub fn acceptor(&self) -> TlsAcceptor {
        self.0.lock().acceptor.clone()
    }

    /// Returns the files in use.
    pub fn config(&self) -> TlsConfig {
        self.0.lock().config.clone()
    }

    /// Uses these files for future connections.
    pub fn replace(&self, files: TlsFiles) {
        *self.0.lock() = files;
    }

    /// Reads the files again, because they may have been replaced.
    ///
    /// # Errors
    /// [`TlsError`]; the certificates in use stay the same.
    pub fn reload(&self) -> Result<(), TlsError> {
        self.replace(TlsFiles::read(self.config())?);
        Ok(())
    }
}
