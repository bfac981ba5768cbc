//! What the real `zfs` prints on wrong usage, for the commands the stand-in knows.

use crate::arguments::{Arguments, Bad};

const LINES: &str = "\
\tdestroy [-fnpRrv] <filesystem|volume>
\tdestroy [-dnpRrv] <filesystem|volume>@<snap>[%<snap>][,...]
\tdestroy <filesystem|volume>#<bookmark>
\tsnapshot [-r] [-o property=value] ... <filesystem|volume>@<snap> ...
\tbookmark <snapshot|bookmark> <newbookmark>
\tlist [-Hp] [-r|-d max] [-o property[,...]] [-s property]...
\t    [-S property]... [-t type[,...]] [filesystem|volume|snapshot] ...
\tget [-rHp] [-d max] [-o \"all\" | field[,...]]
\t    [-t type[,...]] [-s source[,...]]
\t    <\"all\" | property[,...]> [filesystem|volume|snapshot|bookmark] ...
\tsend [-DnPpRVvLecwhb] [-[i|I] snapshot] <snapshot>
\tsend [-DnVvPLecw] [-i snapshot|bookmark] <filesystem|volume|snapshot>
\tsend [-DnPpVvLec] [-i bookmark|snapshot] --redact <bookmark> <snapshot>
\tsend [-nVvPe] -t <receive_resume_token>
\tsend [-PnVv] --saved filesystem
\treceive [-vMnsFhu] [-o <property>=<value>] ... [-x <property>] ...
\t    <filesystem|volume|snapshot>
\treceive [-vMnsFhu] [-o <property>=<value>] ... [-x <property>] ... 
\t    [-d | -e] <filesystem>
\treceive -A <filesystem|volume>
\thold [-r] <tag> <snapshot> ...
\tholds [-rH] <snapshot> ...
\trelease [-r] <tag> <snapshot> ...
";

const TAIL: &str = "
For the property list, run: zfs set|get

For the delegated permission list, run: zfs allow|unallow
";

/// A wrong or missing command.
pub fn all(complaint: &str) -> i32 {
    eprint!(
        "{complaint}\nusage: zfs command args ...\nwhere 'command' is one of the following:\n\n\tversion\n\n{LINES}"
    );
    eprint!("\nEach dataset is of the form: pool/[dataset/]*dataset[@name]\n{TAIL}");
    2
}

pub fn of(command: &str) -> i32 {
    eprint!("usage:\n{}{TAIL}", lines(command));
    2
}

/// Wrong usage of `list -o` or `get`, where the real one shows its table of properties (left out here).
pub fn properties(command: &str, property: &str) -> i32 {
    eprint!("bad property list: invalid property '{property}'\nusage:\n{}", lines(command));
    eprint!("\nThe following properties are supported:\n\n\tPROPERTY       EDIT  INHERIT   VALUES\n\n");
    2
}

fn lines(command: &str) -> String {
    let mut inside = false;
    let mut out = String::new();
    for line in LINES.lines() {
        if !line.starts_with("\t ") {
            inside = line.strip_prefix('\t').and_then(|l| l.split(' ').next()) == Some(command);
        }
        if inside {
            out += line;
            out += "\n";
        }
    }
    out
}

/// Reads the options of a command, or says what is wrong with them.
pub fn read(command: &str, arguments: &[String], spec: &str) -> Result<Arguments, i32> {
    read_long(command, arguments, spec, &[])
}

pub fn read_long(command: &str, arguments: &[String], spec: &str, long: &[(&str, char)]) -> Result<Arguments, i32> {
    Arguments::read(arguments, spec, long).map_err(|bad| {
        match bad {
            Bad::Unknown(option) => eprintln!("invalid option '{option}'"),
            Bad::NoValue(letter) => eprintln!("missing argument for '{letter}' option"),
        }
        of(command)
    })
}
