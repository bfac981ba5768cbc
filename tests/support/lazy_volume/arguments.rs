//! The words of the command line, `name=value` each.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use bytesize::ByteSize;

use crate::lazy_volume::Settings;

pub const USAGE: &str = "\
usage: lazy_volume mount=FOLDER [name=value]...
  vols=N                       how many volumes, FOLDER/vol0 and so on (1)
  size=SIZE chunk=SIZE         of each volume, and of what is fetched as one (64MiB, 512KiB)
  fill=SHARE                   of the chunks that exist (1)
  backing=IMAGE[,IMAGE]...     a volume for each sparse image, in place of vols, size and fill
  cold=TIME jitter=TIME        how long a fetch takes, and how much longer on average (5ms, 0ms)
  tail=SHARExFACTOR            so many fetches take so many times as long (0x10)
  warm=TIME                    how long a read takes that needs no fetch (300us)
  par=N rate=N                 fetches at once, and per second (64, no limit)
  iops=N mibps=N               reads and MiB per second (no limit)
  max_background=N             reads that the kernel passes on at once (4096)
  bad=CHUNK,... hang=... short=...   chunks that fail, that never answer, that begin with a short read
  flaky=CHUNK:TIMES,...        chunks that fail at first
  gone_after=N                 after so many reads every one fails with ENODEV
  seed=N                       of everything random (1)
It prints \"ready\" when all are mounted. SIGUSR1 prints statistics, SIGUSR2 answers the reads that hang, SIGHUP makes
everything cold again, SIGTERM and SIGINT unmount and print statistics.";

/// What is asked for.
pub struct Arguments {
    pub folder: PathBuf,
    pub volumes: Vec<Settings>,
}

impl Arguments {
    pub fn read(words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut settings = Settings::default();
        let mut folder = None;
        let mut count = 1;
        let mut images: Vec<PathBuf> = Vec::new();
        for word in words {
            let (name, value) = word.split_once('=').ok_or_else(|| format!("{word:?} is not name=value"))?;
            match name {
                "mount" => folder = Some(PathBuf::from(value)),
                "vols" => count = number(value)?,
                "backing" => images = value.split(',').map(PathBuf::from).collect(),
                _ => set(&mut settings, name, value)?,
            }
        }
        let folder = folder.ok_or("mount=FOLDER is missing")?;
        let of_image = |image| Settings { backing: Some(image), ..settings.clone() };
        let volumes =
            if images.is_empty() { vec![settings; count] } else { images.into_iter().map(of_image).collect() };
        Ok(Self { folder, volumes })
    }
}

fn set(settings: &mut Settings, name: &str, value: &str) -> Result<(), String> {
    match name {
        "size" => settings.size = size(value)?,
        "chunk" => settings.chunk = size(value)?,
        "fill" => settings.fill = number(value)?,
        "cold" => settings.cold_latency = time(value)?,
        "jitter" => settings.jitter = time(value)?,
        "tail" => (settings.tail_probability, settings.tail_factor) = pair(value, 'x')?,
        "warm" => settings.warm_latency = time(value)?,
        "par" => settings.par = number(value)?,
        "rate" => settings.rate = Some(number(value)?),
        "iops" => settings.iops = Some(number(value)?),
        "mibps" => settings.mibps = Some(number(value)?),
        "max_background" => settings.max_background = number(value)?,
        "bad" => settings.bad = value.split(',').map(number).collect::<Result<_, _>>()?,
        "hang" => settings.hang = value.split(',').map(number).collect::<Result<_, _>>()?,
        "short" => settings.short = value.split(',').map(number).collect::<Result<_, _>>()?,
        "flaky" => settings.flaky = value.split(',').map(|word| pair(word, ':')).collect::<Result<_, _>>()?,
        "gone_after" => settings.gone_after = Some(number(value)?),
        "seed" => settings.seed = number(value)?,
        _ => return Err(format!("there is no {name:?}")),
    }
    Ok(())
}

fn number<T: FromStr>(word: &str) -> Result<T, String> {
    word.parse().map_err(|_| format!("{word:?} is no number that fits here"))
}

fn pair<A: FromStr, B: FromStr>(word: &str, between: char) -> Result<(A, B), String> {
    let (left, right) = word.split_once(between).ok_or_else(|| format!("{word:?} has no {between:?}"))?;
    Ok((number(left)?, number(right)?))
}

fn size(word: &str) -> Result<u64, String> {
    word.parse::<ByteSize>().map(|size| size.as_u64()).map_err(|_| format!("{word:?} is no size"))
}

fn time(word: &str) -> Result<Duration, String> {
    let (digits, unit) = word.split_at(word.find(char::is_alphabetic).unwrap_or(word.len()));
    let second = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        _ => return Err(format!("{word:?} needs a unit: us, ms or s")),
    };
    Duration::try_from_secs_f64(number::<f64>(digits)? * second).map_err(|_| format!("{word:?} is no time"))
}
