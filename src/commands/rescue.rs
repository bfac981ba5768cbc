//! The two texts that outlive this program: `RESCUE.txt` in the repository, and the recovery sheet.

use crate::format::descriptor::Descriptor;
use crate::format::manifest::Hash;

/// `RESCUE.txt`: how to restore with `age`, `zstd`, `minisign` and a shell, with a script that does.
pub fn rescue_text(descriptor: &Descriptor) -> String {
    include_str!("rescue.txt")
        .replace("{repository}", &descriptor.repository.to_string())
        .replace("{recipient}", &descriptor.recipient)
        .replace("{created}", &descriptor.created.to_string())
}

/// What the recovery sheet tells.
pub struct RecoverySheet<'a> {
    /// The profile's name.
    pub name: &'a str,
    /// Where the repository is.
    pub url: &'a str,
    /// The descriptor.
    pub descriptor: &'a Descriptor,
    /// Whose signatures are trusted.
    pub signer: &'a str,
    /// Slots and who opens them.
    pub slots: &'a [(&'a str, &'a str)],
    /// Of `RESCUE.txt` as `init` wrote it; nothing signs it. `None` where that is not known any more.
    pub rescue_blake3: Option<Hash>,
}

impl RecoverySheet<'_> {
    /// The sheet; it holds no secret.
    pub fn text(&self) -> String {
        let Self { name, url, descriptor, signer, slots, rescue_blake3 } = self;
        let rescue = rescue_blake3.as_ref().map_or_else(String::new, |rescue| {
            format!(
                " Before you follow it, see that it is the one that was\n\
                 written there: b3sum RESCUE.txt must print\n    {}",
                rescue.0.to_hex()
            )
        });
        let slots: String = slots.iter().map(|(slot, who)| format!("    {slot:<24} {who}\n")).collect();
        format!(
            "RECOVERY SHEET of the snapferry repository \"{name}\"\n\
             Print it, or keep it away from this machine. It holds no secret; with it and one of the keys below,\n\
             every backup comes back, on any machine.\n\n\
             url         {url}\n\
             repository  {uuid}\n\
             recipient   {recipient}\n\
             signer      {signer}\n\
             created     {created}\n\n\
             It is opened by any one of:\n{slots}\n\
             On another machine, with snapferry:\n    \
             snapferry connect {name} {url} --identity FILE --signer {signer}\n    \
             snapferry list {name} --identity FILE\n    \
             snapferry restore {name} DATASET@SNAPSHOT --to pool/restored --identity FILE\n\
             (or --passphrase-file FILE in place of --identity FILE)\n\n\
             Without snapferry: read RESCUE.txt in the repository.{rescue}\n",
            uuid = descriptor.repository,
            recipient = descriptor.recipient,
            created = descriptor.created,
        )
    }
}
