//! How ssh is called, whatever for.

/// Only what this program needs: nothing is asked for at a terminal, nothing is forwarded or run along the way.
/// A control socket that the user has opened is used, but none is made: it would outlive this program.
pub const FIXED_OPTIONS: [&str; 11] = [
    "BatchMode=yes",
    "ServerAliveInterval=15",
    "ServerAliveCountMax=4",
    "Compression=no",
    "ForwardAgent=no",
    "ForwardX11=no",
    "ClearAllForwardings=yes",
    "PermitLocalCommand=no",
    "RemoteCommand=none",
    "ControlMaster=no",
    "LogLevel=INFO",
];
