//! What somebody with a writer key, or without one, can put into a repository.

use std::fs;

use serde_json::Value;
use snapferry::format::age_file;
use snapferry::format::keys::WriterKey;
use snapferry::format::manifest::MAX_SEALED_MANIFEST;

use crate::support::cli::Machine;

pub fn writer_key(machine: &Machine) -> WriterKey {
    WriterKey::from_text(&fs::read_to_string(machine.config().join("offsite.writer-key")).unwrap()).unwrap()
}

/// The id of the backup that came last.
pub fn last_id(machine: &Machine) -> String {
    machine.backups().last().unwrap()["id"].as_str().unwrap().to_owned()
}

/// Changes a manifest's JSON, and signs it anew with the machine's own key.
pub fn change(machine: &Machine, id: &str, change: impl FnOnce(&mut Value)) {
    let writer = writer_key(machine);
    let path = machine.objects.join(format!("manifests/{id}.age"));
    let json = age_file::open(&fs::read(&path).unwrap(), &[&writer.catalogue], MAX_SEALED_MANIFEST).unwrap();
    let mut manifest: Value = serde_json::from_slice(&zstd::decode_all(&json[..]).unwrap()).unwrap();
    change(&mut manifest);
    let json = zstd::encode_all(&serde_json::to_vec(&manifest).unwrap()[..], 3).unwrap();
    let repository: age::x25519::Recipient = writer.recipient.parse().unwrap();
    fs::write(&path, age_file::seal(&json, &[&repository, &writer.catalogue.to_public()]).unwrap()).unwrap();
    sign(machine, id, &writer);
    // As if it had been so from the beginning.
    fs::remove_file(machine.state().join("seen.json")).unwrap();
}

/// Signs a manifest as it is there, with this key.
pub fn sign(machine: &Machine, id: &str, writer: &WriterKey) {
    let path = machine.objects.join(format!("manifests/{id}.age"));
    let comment = format!("snapferry:{}:{id}", writer.repository);
    let signature = writer.signing.sign(&fs::read(&path).unwrap(), &comment).unwrap();
    fs::write(path.with_extension("age.minisig"), signature).unwrap();
}
