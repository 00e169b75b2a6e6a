//! The host's end of the agent in the guest; `guest/agent.py` tells how they talk.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::ExitCode;
use std::time::Duration;

/// Where the agent is reached: a port of the loopback interface that QEMU forwards.
pub(crate) const PORT: u16 = 2200;
/// How long it may think about nothing, in an emulated machine.
const ANSWER: Duration = Duration::from_secs(5);

/// Runs a command in the guest and passes on what it says, as it comes.
///
/// # Errors
/// If the agent cannot be reached, or goes away.
pub(crate) fn run(command: &str, output: &mut impl Write) -> io::Result<i32> {
    perform(connect()?, command, output)
}

/// Whether the agent answers at once. QEMU takes a connection before anybody in the guest
/// does, and may then keep it for ever.
pub(crate) fn answers() -> bool {
    let asked = connect().and_then(|stream| {
        stream.set_read_timeout(Some(ANSWER))?;
        perform(stream, "true", &mut Vec::new())
    });
    asked.is_ok()
}

fn perform(mut stream: TcpStream, command: &str, output: &mut impl Write) -> io::Result<i32> {
    stream.write_all(command.as_bytes())?;
    stream.write_all(&[0])?;
    loop {
        let mut head = [0; 5];
        stream.read_exact(&mut head)?;
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
        let mut data = vec![0; length as usize];
        stream.read_exact(&mut data)?;
        match head[0] {
            b'o' => output.write_all(&data)?,
            b'x' => {
                let status = String::from_utf8_lossy(&data).parse();
                return status.map_err(|_| ErrorKind::InvalidData.into());
            }
            _ => return Err(ErrorKind::InvalidData.into()),
        }
    }
}

#[allow(clippy::disallowed_methods)] // a tool that talks to a virtual machine
fn connect() -> io::Result<TcpStream> {
    TcpStream::connect(("127.0.0.1", PORT))
}

/// Waiting for somebody in the guest to listen on a TCP port.
pub(crate) struct Listener(TcpStream);

impl Listener {
    /// Asks.
    ///
    /// # Errors
    /// If the agent cannot be reached.
    pub(crate) fn new(port: u16) -> io::Result<Listener> {
        let mut stream = connect()?;
        stream.write_all(format!("listen {port}\0").as_bytes())?;
        stream.set_nonblocking(true)?;
        Ok(Listener(stream))
    }

    /// Whether the answer has come.
    ///
    /// # Errors
    /// If the agent has gone away.
    pub(crate) fn is_there(&mut self) -> io::Result<bool> {
        match self.0.read(&mut [0; 16]) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// This program as a command of the guest: same output, same exit status.
pub(crate) fn main(command: &str) -> ExitCode {
    match run(command, &mut io::stdout()) {
        // A signal counts as it does in a shell.
        Ok(status) if status < 0 => ExitCode::from(u8::try_from(128 - status).unwrap_or(255)),
        Ok(status) => ExitCode::from(u8::try_from(status).unwrap_or(255)),
        Err(error) => {
            eprintln!("error: the guest does not answer: {error}");
            ExitCode::from(255)
        }
    }
}
