//! Tries an operation again when its failure may pass: a dropped connection, a stalled server.

use std::time::Duration;

use super::{ObjectInfo, Store, StoreError, StoreErrorKind};

/// How often and how patiently.
#[derive(Clone, Copy, Debug)]
pub struct RetryPolicy {
    /// Tries in all, the first included.
    pub tries: u32,
    /// The wait before the second try; doubled before each further one.
    pub first_wait: Duration,
    /// No single wait is longer.
    pub longest_wait: Duration,
}

impl Default for RetryPolicy {
    /// Six tries with about half a minute of waiting between them.
    fn default() -> Self {
        Self { tries: 6, first_wait: Duration::from_secs(1), longest_wait: Duration::from_secs(30) }
    }
}

impl RetryPolicy {
    /// The wait after the `failed`-th failed try (from 1): exponential, with a random half so that several
    /// clients of a server that came back don't all call at once.
    fn wait(&self, failed: u32) -> Duration {
        let full = self.first_wait.saturating_mul(1 << failed.saturating_sub(1).min(16)).min(self.longest_wait);
        let mut random = [0u8; 1];
        // Without randomness the wait is merely less spread.
        let _ = getrandom::fill(&mut random);
        full.mul_f64(0.5 + f64::from(random[0]) / 512.0)
    }
}

/// A store whose transient failures are tried again, bounded in number.
#[derive(Debug)]
pub struct Retry<S> {
    inner: S,
    policy: RetryPolicy,
}

impl<S: Store> Retry<S> {
    /// Wraps `inner`.
    pub fn new(inner: S, policy: RetryPolicy) -> Self {
        Self { inner, policy }
    }

    fn retry<T>(&self, mut operation: impl FnMut(u32) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let mut tried = 1;
        loop {
            match operation(tried) {
                Err(error) if error.is_transient() && tried < self.policy.tries => {
                    let wait = self.policy.wait(tried);
                    tracing::info!(
                        "{error}; trying again in {:.1} s ({tried} of {})",
                        wait.as_secs_f64(),
                        self.policy.tries
                    );
                    std::thread::sleep(wait);
                    tried += 1;
                }
                Err(mut error) if error.is_transient() && tried > 1 => {
                    error.message = format!("{} (after {tried} tries)", error.message);
                    return Err(error);
                }
                other => return other,
            }
        }
    }
}

impl<S: Store> Store for Retry<S> {
    fn put(&self, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        self.retry(|tried| match self.inner.put(name, bytes) {
            // Names are random and used once: an object that appeared between two tries is our own, whose
            // acknowledgement was lost. Only its size can be asked for cheaply; its hash is checked later.
            Err(error) if error.kind == StoreErrorKind::Exists && tried > 1 => match self.inner.size(name) {
                Ok(size) if size == bytes.len() as u64 => Ok(()),
                Ok(_) => Err(error),
                Err(unsized_error) => Err(unsized_error),
            },
            other => other,
        })
    }

    fn get(&self, name: &str, limit: u64) -> Result<Vec<u8>, StoreError> {
        self.retry(|_| self.inner.get(name, limit))
    }

    fn get_into(&self, name: &str, limit: u64, buffer: &mut Vec<u8>) -> Result<(), StoreError> {
        self.retry(|_| self.inner.get_into(name, limit, buffer))
    }

    fn size(&self, name: &str) -> Result<u64, StoreError> {
        self.retry(|_| self.inner.size(name))
    }

    fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>, StoreError> {
        self.retry(|_| self.inner.list(prefix))
    }

    fn delete(&self, name: &str) -> Result<(), StoreError> {
        self.retry(|tried| match self.inner.delete(name) {
            Err(error) if error.kind == StoreErrorKind::NotFound && tried > 1 => Ok(()),
            other => other,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::store::memory::MemoryStore;

    /// Fails the first `failures` operations; `lands` says whether they take effect all the same.
    struct Flaky {
        inner: MemoryStore,
        failures: AtomicU32,
        lands: bool,
    }

    impl Flaky {
        fn new(failures: u32, lands: bool) -> Self {
            Self { inner: MemoryStore::default(), failures: AtomicU32::new(failures), lands }
        }

        fn run<T>(&self, operation: impl Fn() -> Result<T, StoreError>) -> Result<T, StoreError> {
            let left = self.failures.load(Ordering::Relaxed);
            if left == 0 {
                return operation();
            }
            self.failures.store(left - 1, Ordering::Relaxed);
            if self.lands {
                let _ = operation();
            }
            Err(StoreError::new(StoreErrorKind::Transient, "store", "x", "connection lost"))
        }
    }

    impl Store for Flaky {
        fn put(&self, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
            self.run(|| self.inner.put(name, bytes))
        }
        fn get(&self, name: &str, limit: u64) -> Result<Vec<u8>, StoreError> {
            self.run(|| self.inner.get(name, limit))
        }
        fn size(&self, name: &str) -> Result<u64, StoreError> {
            self.run(|| self.inner.size(name))
        }
        fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>, StoreError> {
            self.run(|| self.inner.list(prefix))
        }
        fn delete(&self, name: &str) -> Result<(), StoreError> {
            self.run(|| self.inner.delete(name))
        }
    }

    fn quick() -> RetryPolicy {
        RetryPolicy { tries: 4, first_wait: Duration::from_micros(1), longest_wait: Duration::from_micros(4) }
    }

    #[test]
    fn passing_failures_are_overcome() {
        let store = Retry::new(Flaky::new(3, false), quick());
        store.put("a", b"1").unwrap();
        assert_eq!(store.get("a", 10).unwrap(), b"1");
    }

    #[test]
    fn lasting_failures_end_and_say_how_often() {
        let store = Retry::new(Flaky::new(9, false), quick());
        let error = store.put("a", b"1").unwrap_err();
        assert!(error.to_string().contains("after 4 tries"), "{error}");
        assert_eq!(store.inner.failures.load(Ordering::Relaxed), 5);
    }

    #[test]
    fn a_put_that_landed_unacknowledged_is_a_success() {
        let store = Retry::new(Flaky::new(1, true), quick());
        store.put("a", b"1").unwrap();
        store.inner.failures.store(1, Ordering::Relaxed);
        store.delete("a").unwrap();
    }

    #[test]
    fn an_object_of_another_size_is_not_ours() {
        let store = Retry::new(Flaky::new(1, false), quick());
        store.inner.inner.put("a", b"something else").unwrap();
        assert_eq!(store.put("a", b"1").unwrap_err().kind, StoreErrorKind::Exists);
    }

    #[test]
    fn other_failures_are_not_tried_again() {
        let store = Retry::new(Flaky::new(0, false), quick());
        assert_eq!(store.get("missing", 1).unwrap_err().kind, StoreErrorKind::NotFound);
    }

    #[test]
    fn waits_grow_and_stay_bounded() {
        let policy = RetryPolicy::default();
        for failed in 1..40 {
            let wait = policy.wait(failed);
            assert!(wait >= policy.first_wait / 2 && wait <= policy.longest_wait, "{failed}: {wait:?}");
        }
    }
}
