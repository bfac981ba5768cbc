//! The two pipes to `ssh`: they count what moves and check what comes.

use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use rustix::pipe::fcntl_setpipe_size;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::unix::pipe::{Receiver, Sender};

use super::frames::{FrameCheck, FrameError};

/// Larger pipes mean fewer wake-ups; the system may refuse, and then it works with what there is.
const PIPE_BYTES: usize = 1 << 20;

/// What is known about a session from its pipes alone.
#[derive(Debug, Default)]
pub struct LinkState {
    moved: AtomicU64,
    ended: AtomicBool,
    violation: OnceLock<FrameError>,
}

impl LinkState {
    /// Bytes that went either way so far.
    pub fn moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    /// Whether one of the pipes was closed by the other side.
    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// What the server sent that is not SFTP.
    pub fn violation(&self) -> Option<&FrameError> {
        self.violation.get()
    }

    fn note<T>(&self, result: io::Result<T>) -> io::Result<T> {
        if result.is_err() {
            self.ended.store(true, Ordering::Release);
        }
        result
    }
}

/// From the server.
#[derive(Debug)]
pub struct FromServer {
    pipe: Receiver,
    check: FrameCheck,
    state: Arc<LinkState>,
}

impl FromServer {
    /// Must be called within a tokio runtime.
    pub fn new(stdout: OwnedFd, state: Arc<LinkState>) -> io::Result<Self> {
        let _ = fcntl_setpipe_size(&stdout, PIPE_BYTES);
        Ok(Self { pipe: Receiver::from_owned_fd(stdout)?, check: FrameCheck::default(), state })
    }
}

impl AsyncRead for FromServer {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buffer.filled().len();
        let result = ready!(Pin::new(&mut this.pipe).poll_read(context, buffer));
        this.state.note(result)?;
        let fresh = &buffer.filled()[before..];
        if fresh.is_empty() {
            this.state.ended.store(true, Ordering::Release);
        }
        this.state.moved.fetch_add(fresh.len() as u64, Ordering::Relaxed);
        if let Err(violation) = this.check.feed(fresh) {
            buffer.set_filled(before);
            let error = io::Error::new(io::ErrorKind::InvalidData, violation.clone());
            let _ = this.state.violation.set(violation);
            return Poll::Ready(this.state.note(Err(error)));
        }
        Poll::Ready(Ok(()))
    }
}

/// To the server.
#[derive(Debug)]
pub struct ToServer {
    pipe: Sender,
    state: Arc<LinkState>,
}

impl ToServer {
    /// Must be called within a tokio runtime.
    pub fn new(stdin: OwnedFd, state: Arc<LinkState>) -> io::Result<Self> {
        let _ = fcntl_setpipe_size(&stdin, PIPE_BYTES);
        Ok(Self { pipe: Sender::from_owned_fd(stdin)?, state })
    }

    fn count(&self, result: io::Result<usize>) -> Poll<io::Result<usize>> {
        if let Ok(n) = result {
            self.state.moved.fetch_add(n as u64, Ordering::Relaxed);
        }
        Poll::Ready(self.state.note(result))
    }
}

impl AsyncWrite for ToServer {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let result = ready!(Pin::new(&mut self.pipe).poll_write(context, bytes));
        self.count(result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = ready!(Pin::new(&mut self.pipe).poll_write_vectored(context, slices));
        self.count(result)
    }

    fn is_write_vectored(&self) -> bool {
        self.pipe.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_shutdown(context)
    }
}
