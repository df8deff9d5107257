//! Certificates and keys of the encrypted listener.

use std::path::Path;
use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

use crate::state::config::TlsConfig;

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect);
    let all: Vec<_> = read.map_err(|error| format!("{}: {error}", file.display()))?;
    if all.is_empty() { Err(format!("{} holds no certificate", file.display())) } else { Ok(all) }
}

/// The acceptor of encrypted connections.
///
/// # Errors
/// A file that cannot be read, or has the wrong content.
pub fn acceptor(tls: &TlsConfig) -> Result<TlsAcceptor, String> {
    let chain = certificates(&tls.certificate)?;
    let key = PrivateKeyDer::from_pem_file(&tls.key);
    let key = key.map_err(|error| format!("{}: {error}", tls.key.display()))?;
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let builder = match &tls.client_authorities {
        None => builder.with_no_client_auth(),
        Some(file) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(file)? {
                let added = roots.add(certificate);
                added.map_err(|error| format!("{}: {error}", file.display()))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(verifier.build().map_err(|error| error.to_string())?)
        }
    };
    let config = builder.with_single_cert(chain, key);
    let config = config.map_err(|error| {
        format!("{} and {}: {error}", tls.certificate.display(), tls.key.display())
    })?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}
