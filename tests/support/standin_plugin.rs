//! An age plugin for the tests, as people have them for hardware keys. Alone it prints a new identity with its
//! recipient; otherwise an age client runs it.

use std::collections::{HashMap, HashSet};
use std::io;

use age_core::format::{FileKey, Stanza};
use age_core::secrecy::ExposeSecret;
use age_plugin::{Callbacks, PluginHandler, identity, print_new_identity, recipient, run_state_machine};

/// Found as `age-plugin-standin`.
const NAME: &str = "standin";

/// The secret of an identity: it hides a file key by exclusive or, which is enough for a test.
type Secret = [u8; 16];

#[derive(Default)]
struct Plugin {
    secrets: Vec<Secret>,
}

impl Plugin {
    fn add(&mut self, name: &str, bytes: &[u8]) -> Result<(), String> {
        let secret = bytes.try_into().map_err(|_| "not 16 bytes".to_owned())?;
        self.secrets.push(secret);
        if name == NAME { Ok(()) } else { Err(format!("this is not {name}")) }
    }
}

fn hidden(key: &[u8], secret: &Secret) -> Vec<u8> {
    key.iter().zip(secret).map(|(key, secret)| key ^ secret).collect()
}

/// Says which secret it is without telling it.
fn tag_of(secret: &Secret) -> String {
    blake3::hash(secret).to_hex()[..16].to_owned()
}

impl PluginHandler for Plugin {
    type RecipientV1 = Self;
    type IdentityV1 = Self;

    fn recipient_v1(self) -> io::Result<Self> {
        Ok(self)
    }

    fn identity_v1(self) -> io::Result<Self> {
        Ok(self)
    }
}

impl recipient::RecipientPluginV1 for Plugin {
    fn add_recipient(&mut self, index: usize, name: &str, bytes: &[u8]) -> Result<(), recipient::Error> {
        self.add(name, bytes).map_err(|message| recipient::Error::Recipient { index, message })
    }

    fn add_identity(&mut self, index: usize, name: &str, bytes: &[u8]) -> Result<(), recipient::Error> {
        self.add(name, bytes).map_err(|message| recipient::Error::Identity { index, message })
    }

    fn labels(&mut self) -> HashSet<String> {
        HashSet::new()
    }

    fn wrap_file_keys(
        &mut self,
        keys: Vec<FileKey>,
        _: impl Callbacks<recipient::Error>,
    ) -> io::Result<Result<Vec<Vec<Stanza>>, Vec<recipient::Error>>> {
        let wrap = |key: &FileKey, secret: &Secret| Stanza {
            tag: NAME.to_owned(),
            args: vec![tag_of(secret)],
            body: hidden(key.expose_secret(), secret),
        };
        Ok(Ok(keys.iter().map(|key| self.secrets.iter().map(|secret| wrap(key, secret)).collect()).collect()))
    }
}

impl identity::IdentityPluginV1 for Plugin {
    fn add_identity(&mut self, index: usize, name: &str, bytes: &[u8]) -> Result<(), identity::Error> {
        self.add(name, bytes).map_err(|message| identity::Error::Identity { index, message })
    }

    fn unwrap_file_keys(
        &mut self,
        files: Vec<Vec<Stanza>>,
        _: impl Callbacks<identity::Error>,
    ) -> io::Result<HashMap<usize, Result<FileKey, Vec<identity::Error>>>> {
        let mut found = HashMap::new();
        for (index, stanza) in files.iter().enumerate().flat_map(|(index, file)| file.iter().map(move |s| (index, s))) {
            let ours = |secret: &&Secret| stanza.tag == NAME && stanza.args == [tag_of(secret)];
            if let Some(secret) = self.secrets.iter().find(ours) {
                let key = FileKey::init_with_mut(|key| key.copy_from_slice(&hidden(&stanza.body, secret)));
                found.insert(index, Ok(key));
            }
        }
        Ok(found)
    }
}

fn main() -> io::Result<()> {
    match std::env::args().nth(1).and_then(|word| word.strip_prefix("--age-plugin=").map(str::to_owned)) {
        Some(state_machine) => run_state_machine(&state_machine, Plugin::default()),
        None => {
            let mut secret = Secret::default();
            getrandom::fill(&mut secret).map_err(io::Error::other)?;
            print_new_identity(NAME, &secret, &secret);
            Ok(())
        }
    }
}
