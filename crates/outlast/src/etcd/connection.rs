//! One HTTP/2 connection to a member of etcd, over our own sockets.
//!
//! The connection is made here, not by a ready-made channel, for three reasons: its descriptor is kept out of forked
//! children like all of ours, a broken connection is seen and not hidden behind a retry, and far less has to be compiled.

use super::{EtcdError, EtcdOptions, Security};
use crate::fork::Guarded;
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper::rt::{Executor, ReadBufCursor};
use prost::Message;
use rustls::pki_types::ServerName;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, lookup_host};
use tokio_rustls::TlsConnector;
use tonic::client::Grpc;
use tonic::codegen::http::{Request, Response, Uri, uri::PathAndQuery};
use tonic::metadata::{Ascii, MetadataValue};
use tonic_prost::ProstCodec;

/// Largest message that is taken: many times what a register holds.
const MESSAGE_BYTES_MAX: usize = 16 << 20;
/// The other side is asked whether it lives after so much silence, and has as long to answer.
const SILENT_AFTER: Duration = Duration::from_secs(5);

/// A connection whose other end has answered.
#[derive(Clone)]
pub(super) struct Connection {
    grpc: Grpc<Sender>,
    token: Option<MetadataValue<Ascii>>,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Connection")
    }
}

impl Connection {
    /// Connects to one endpoint (`host:port`).
    pub(super) async fn connect(endpoint: &str, options: &EtcdOptions) -> Result<Self, EtcdError> {
        let unreachable = |cause: String| EtcdError::Unreachable { endpoint: endpoint.to_owned(), cause };
        let found = lookup_host(endpoint).await.map_err(|error| unreachable(error.to_string()))?;
        let mut last = unreachable("the name has no address".to_owned());
        for address in found {
            match TcpStream::connect(address).await {
                Err(error) => last = unreachable(error.to_string()),
                Ok(stream) => {
                    let _ = stream.set_nodelay(true);
                    let stream = Guarded::new(stream).map_err(|error| unreachable(error.to_string()))?;
                    return Self::open(stream, endpoint, options).await;
                }
            }
        }
        Err(last)
    }

    async fn open(
        stream: Guarded<TcpStream>,
        endpoint: &str,
        options: &EtcdOptions,
    ) -> Result<Self, EtcdError> {
        let strange = |error: hyper::Error| EtcdError::NotEtcd {
            endpoint: endpoint.to_owned(),
            cause: format!("no HTTP/2: {error}"),
        };
        let (sender, scheme) = match &options.security {
            Security::Plain => (handshake(stream).await.map_err(strange)?, "http"),
            Security::Tls(config) => {
                let host = endpoint.rsplit_once(':').map_or(endpoint, |(host, _)| host);
                let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned());
                let name = name.map_err(|error| EtcdError::Tls {
                    endpoint: endpoint.to_owned(),
                    cause: error.to_string(),
                })?;
                let connector = TlsConnector::from(config.0.clone());
                let stream =
                    connector.connect(name, stream).await.map_err(|error| tls_error(endpoint, error))?;
                (handshake(stream).await.map_err(strange)?, "https")
            }
        };
        let origin = Uri::builder().scheme(scheme).authority(endpoint).path_and_query("/").build();
        let origin = origin.map_err(|error| EtcdError::Unreachable {
            endpoint: endpoint.to_owned(),
            cause: error.to_string(),
        })?;
        let grpc = Grpc::with_origin(Sender(sender), origin)
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX);
        Ok(Self { grpc, token: None })
    }

    /// What every later call shows.
    pub(super) fn set_token(&mut self, token: &str) -> Result<(), EtcdError> {
        let token =
            token.parse().map_err(|_| EtcdError::Unauthorized("etcd gave an odd token".to_owned()))?;
        self.token = Some(token);
        Ok(())
    }

    /// One question, one answer.
    pub(super) async fn unary<Q, A>(&self, path: &'static str, question: Q) -> Result<A, EtcdError>
    where
        Q: Message + Send + Sync + 'static,
        A: Message + Default + Send + Sync + 'static,
    {
        let mut grpc = self.grpc.clone();
        grpc.ready().await.map_err(|error| EtcdError::Broken(error.to_string()))?;
        let codec = ProstCodec::<Q, A>::default();
        let answered = grpc.unary(self.request(question), PathAndQuery::from_static(path), codec).await;
        Ok(answered.map_err(|status| EtcdError::from_status(&status))?.into_inner())
    }

    /// A stream of questions and one of answers. The questions end when `questions` does.
    pub(super) async fn streaming<Q, A>(
        &self,
        path: &'static str,
        questions: impl tokio_stream::Stream<Item = Q> + Send + 'static,
    ) -> Result<tonic::Streaming<A>, EtcdError>
    where
        Q: Message + Send + Sync + 'static,
        A: Message + Default + Send + Sync + 'static,
    {
        let mut grpc = self.grpc.clone();
        grpc.ready().await.map_err(|error| EtcdError::Broken(error.to_string()))?;
        let codec = ProstCodec::<Q, A>::default();
        let opened = grpc.streaming(self.request(questions), PathAndQuery::from_static(path), codec).await;
        Ok(opened.map_err(|status| EtcdError::from_status(&status))?.into_inner())
    }

    fn request<T>(&self, message: T) -> tonic::Request<T> {
        let mut request = tonic::Request::new(message);
        // A member that was cut off from its leader says so, instead of waiting with us.
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        if let Some(token) = &self.token {
            request.metadata_mut().insert("authorization", token.clone());
        }
        request
    }
}

async fn handshake<S>(stream: S) -> Result<SendRequest<tonic::body::Body>, hyper::Error>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut builder = http2::Builder::new(Spawn);
    builder.timer(Clock).keep_alive_interval(SILENT_AFTER).keep_alive_timeout(SILENT_AFTER);
    builder.keep_alive_while_idle(true);
    let (sender, connection) = builder.handshake(Io(stream)).await?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection to etcd ended");
        }
    });
    Ok(sender)
}

fn tls_error(endpoint: &str, error: io::Error) -> EtcdError {
    let endpoint = endpoint.to_owned();
    let cause = error.to_string();
    if error.get_ref().is_some_and(<dyn std::error::Error + Send + Sync>::is::<rustls::Error>) {
        EtcdError::Tls { endpoint, cause }
    } else {
        EtcdError::Unreachable { endpoint, cause }
    }
}

/// What carries requests, in the words that `tonic` expects.
#[derive(Clone)]
struct Sender(SendRequest<tonic::body::Body>);

impl tower_service::Service<Request<tonic::body::Body>> for Sender {
    type Response = Response<Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Incoming>, hyper::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<tonic::body::Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

/// Runs what hyper starts where it was started.
#[derive(Clone, Copy)]
struct Spawn;

impl<F: Future<Output: Send> + Send + 'static> Executor<F> for Spawn {
    fn execute(&self, future: F) {
        tokio::spawn(future);
    }
}

/// hyper's clock: the runtime's.
#[derive(Clone, Copy, Debug)]
struct Clock;

impl hyper::rt::Timer for Clock {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn hyper::rt::Sleep>> {
        Box::pin(Asleep(Box::pin(tokio::time::sleep(duration))))
    }

    fn sleep_until(&self, deadline: std::time::Instant) -> Pin<Box<dyn hyper::rt::Sleep>> {
        Box::pin(Asleep(Box::pin(tokio::time::sleep_until(deadline.into()))))
    }
}

struct Asleep(Pin<Box<tokio::time::Sleep>>);

impl Future for Asleep {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(context)
    }
}

impl hyper::rt::Sleep for Asleep {}

/// A stream of ours, in the words that hyper expects.
struct Io<S>(S);

impl<S: AsyncRead + Unpin> hyper::rt::Read for Io<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        mut buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        // Through memory of our own, so that nothing here is unsafe: what passes is small.
        let mut bytes = [0; 8_192];
        let room = bytes.len().min(buffer.remaining());
        let mut read = ReadBuf::new(&mut bytes[..room]);
        std::task::ready!(Pin::new(&mut self.get_mut().0).poll_read(context, &mut read))?;
        buffer.put_slice(read.filled());
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> hyper::rt::Write for Io<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().0).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_shutdown(context)
    }
}
