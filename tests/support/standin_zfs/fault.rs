//! What goes wrong, and where: one way for the bytes out, one for the bytes in.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use crate::noise::Noise;
use crate::state::{Death, END, FAULT_VARIABLE, Fault, State, What};

/// The faults that strike this call. Counts the call.
pub fn of_this_call(folder: &Path, command: &str, arguments: &[String]) -> Vec<What> {
    let strikes = |fault: &Fault| {
        (fault.command == "*" || fault.command == command)
            && fault.argument.as_ref().is_none_or(|part| arguments.iter().any(|a| a.contains(part.as_str())))
    };
    let mut struck: Vec<What> = Vec::new();
    // Only a fault that counts makes us write the state.
    if State::load(folder).faults.iter().any(strikes) {
        State::update(folder, |state| {
            for fault in state.faults.iter_mut().filter(|f| strikes(f)) {
                if fault.skip > 0 {
                    fault.skip -= 1;
                } else if fault.times != Some(0) {
                    fault.times = fault.times.map(|n| n - 1);
                    struck.push(fault.what.clone());
                }
            }
        });
    }
    if let Ok(text) = std::env::var(FAULT_VARIABLE) {
        let faults: Vec<Fault> = serde_json::from_str(&text)
            .or_else(|_| serde_json::from_str(&text).map(|one| vec![one]))
            .unwrap_or_else(|e| panic!("{FAULT_VARIABLE} is no fault: {e}"));
        struck.extend(faults.into_iter().filter(strikes).map(|f| f.what));
    }
    struck
}

pub fn die(how: Death) -> ! {
    match how {
        Death::Exit(status) => std::process::exit(status),
        Death::Signal(signal) => {
            // Rust ignores SIGPIPE from the start, and a test may hand down other ignored signals: both must kill here.
            let _ = signal_hook::low_level::emulate_default_handler(signal);
            let _ = signal_hook::low_level::raise(signal);
            std::thread::sleep(Duration::from_secs(5));
            panic!("signal {signal} did not end this process");
        }
    }
}

/// The faults of the first moment.
pub fn before(faults: &[What]) {
    for fault in faults {
        match fault {
            What::IgnoreTerm => {
                // A handler that does nothing; forgotten registrations stay in force.
                let _ = signal_hook::flag::register(15, Arc::new(AtomicBool::new(false)));
            }
            What::Delay { ms } => std::thread::sleep(Duration::from_millis(*ms)),
            What::Hang => loop {
                std::thread::sleep(Duration::from_secs(3600));
            },
            What::Fail { exit, stderr } => {
                eprint!("{stderr}");
                std::process::exit(*exit);
            }
            _ => {}
        }
    }
}

/// The faults that happen at a place in a flow of bytes, and the place.
struct Flow {
    faults: Vec<What>,
    at: u64,
    began: Instant,
    /// Faults whose place was passed.
    done: Vec<bool>,
}

impl Flow {
    fn new(faults: &[What]) -> Flow {
        Flow { faults: faults.to_vec(), at: 0, began: Instant::now(), done: vec![false; faults.len()] }
    }

    /// The next place where the flow must stop and look.
    fn next_stop(&self) -> u64 {
        let places = self.faults.iter().zip(&self.done).filter(|(_, done)| !**done).filter_map(|(f, _)| place(f));
        places.filter(|&place| place >= self.at).min().unwrap_or(END)
    }

    fn due(&mut self) -> Vec<What> {
        let mut due = Vec::new();
        for (fault, done) in self.faults.iter().zip(&mut self.done) {
            if !*done && place(fault).is_some_and(|place| place <= self.at) {
                *done = true;
                due.push(fault.clone());
            }
        }
        due
    }

    fn passed(&mut self, bytes: usize) {
        self.at += bytes as u64;
        for fault in &self.faults {
            if let What::Slow { rate } = fault {
                let due = Duration::from_secs_f64(self.at as f64 / *rate as f64);
                std::thread::sleep(due.saturating_sub(self.began.elapsed()));
            }
        }
    }

    /// A slow flow moves in small pieces.
    fn piece(&self) -> usize {
        let rates = self.faults.iter().filter_map(|f| if let What::Slow { rate } = f { Some(*rate) } else { None });
        rates.min().map_or(64 * 1024, |rate| (rate / 20).clamp(1, 64 * 1024) as usize)
    }
}

fn place(fault: &What) -> Option<u64> {
    match fault {
        What::Die { at, .. }
        | What::Pause { at, .. }
        | What::PauseUntil { at, .. }
        | What::Noise { at, .. }
        | What::Flip { at }
        | What::Garbage { at, .. }
        | What::Cut { at, .. }
        | What::Truncate { at }
        | What::StopReading { at } => Some(*at),
        What::Behind { .. } => Some(END),
        _ => None,
    }
}

fn rest(fault: &What) {
    match fault {
        What::Pause { ms, .. } => std::thread::sleep(Duration::from_millis(*ms)),
        What::PauseUntil { file, .. } => {
            while !file.exists() {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        What::Noise { bytes, .. } => {
            let line = "warning: the stand-in says something that nobody asked for, and says it again and again\n";
            let mut left = *bytes as usize;
            while left > 0 {
                let part = &line[..line.len().min(left)];
                eprint!("{part}");
                left -= part.len();
            }
        }
        _ => {}
    }
}

/// Standard output.
pub struct Output {
    flow: Flow,
    out: Box<dyn Write>,
    /// Bytes still to be left out, or to be written over.
    cut: u64,
    garbage: u64,
    noise: Noise,
}

impl Output {
    pub fn new(faults: &[What]) -> Output {
        let flow = Flow::new(faults);
        Output { flow, out: Box::new(io::stdout().lock()), cut: 0, garbage: 0, noise: Noise::new(7) }
    }

    pub fn copy(&mut self, input: &mut impl Read) {
        let mut buffer = vec![0; self.flow.piece()];
        loop {
            self.strike();
            let room = (self.flow.next_stop() - self.flow.at).clamp(1, buffer.len() as u64) as usize;
            let got = input.read(&mut buffer[..room]).unwrap_or_else(|e| panic!("cannot read what is to be sent: {e}"));
            if got == 0 {
                return;
            }
            self.put(&mut buffer[..got]);
        }
    }

    /// Everything is written: time for the faults that wait for it.
    pub fn finish(mut self) {
        if let Some(What::Behind { file }) = self.flow.faults.iter().find(|f| matches!(f, What::Behind { .. })) {
            let second = std::fs::read(file).unwrap_or_else(|e| panic!("cannot read {}: {e}", file.display()));
            self.write(&second);
        }
        let _ = self.out.flush();
        self.flow.at = END;
        self.strike();
    }

    fn strike(&mut self) {
        for fault in self.flow.due() {
            match fault {
                What::Die { how, .. } => {
                    let _ = self.out.flush();
                    die(how)
                }
                What::Truncate { .. } => {
                    let _ = self.out.flush();
                    std::process::exit(0)
                }
                What::Flip { at } if at < END => self.garbage = u64::MAX,
                What::Garbage { length, .. } => self.garbage = length,
                What::Cut { length, .. } => self.cut = length,
                other => {
                    let _ = self.out.flush();
                    rest(&other);
                }
            }
        }
    }

    fn put(&mut self, bytes: &mut [u8]) {
        let length = bytes.len();
        let mut bytes = bytes;
        if self.garbage == u64::MAX {
            bytes[0] ^= 1;
            self.garbage = 0;
        } else if self.garbage > 0 {
            let count = self.garbage.min(bytes.len() as u64) as usize;
            bytes[..count].copy_from_slice(&self.noise.block(count));
            self.garbage -= count as u64;
        }
        if self.cut > 0 {
            let count = self.cut.min(bytes.len() as u64);
            self.cut -= count;
            bytes = &mut bytes[count as usize..];
        }
        self.write(bytes);
        self.flow.passed(length);
    }

    fn write(&mut self, bytes: &[u8]) {
        if let Err(error) = self.out.write_all(bytes).and_then(|()| self.out.flush()) {
            if error.kind() == io::ErrorKind::BrokenPipe {
                die(Death::Signal(13));
            }
            crate::send::cannot_write(&error);
        }
    }
}

/// Standard input, and a copy of all that was read.
pub struct Input<W> {
    flow: Flow,
    /// Without a buffer: the real one takes not a byte behind the END.
    stdin: File,
    copy: W,
    /// Set when a fault ends the reading: how to die once what must be kept is kept.
    pub death: Option<Death>,
}

impl<W: Write> Input<W> {
    pub fn new(faults: &[What], copy: W) -> Self {
        let stdin = io::stdin().as_fd().try_clone_to_owned().expect("standard input").into();
        Input { flow: Flow::new(faults), stdin, copy, death: None }
    }

    pub fn position(&self) -> u64 {
        self.flow.at
    }

    /// Makes the copy whole, which a sudden end would not.
    pub fn flush(&mut self) {
        self.copy.flush().expect("the copy of what is received");
    }

    /// Everything was read: the faults that wait for the end.
    pub fn finish(&mut self) {
        self.flush();
        self.flow.at = END;
        for fault in self.flow.due() {
            match fault {
                What::Die { how, .. } => die(how),
                other => rest(&other),
            }
        }
    }
}

impl<W: Write> Read for Input<W> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        for fault in self.flow.due() {
            match fault {
                What::Die { how, .. } => self.death = Some(how),
                What::StopReading { .. } => std::process::exit(0),
                other => rest(&other),
            }
        }
        if self.death.is_some() {
            return Ok(0);
        }
        let room = (self.flow.next_stop() - self.flow.at).clamp(1, buffer.len().min(self.flow.piece()).max(1) as u64);
        let room = (room as usize).min(buffer.len());
        let got = self.stdin.read(&mut buffer[..room])?;
        self.copy.write_all(&buffer[..got])?;
        self.flow.passed(got);
        Ok(got)
    }
}
