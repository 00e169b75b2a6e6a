//! The host's end of the agent in the guest. `guest/agent.py` documents the protocol.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::ExitCode;
use std::time::Duration;

/// TCP port of the agent in a guest. QEMU forwards a port of the host's loopback interface to it: this
/// one for the first guest.
pub(crate) const PORT: u16 = 2200;
/// Timeout for the agent's reply to an empty command, in an emulated machine.
const ANSWER: Duration = Duration::from_secs(5);

/// Runs a command in the guest whose agent has the host's port `agent`, and writes its output to
/// `output` as it arrives. Returns the exit status.
///
/// # Errors
/// If the agent cannot be reached, or the connection breaks.
pub(crate) fn run(agent: u16, command: &str, output: &mut impl Write) -> io::Result<i32> {
    perform(connect(agent)?, command, output)
}

/// Returns true if the agent replies within [`ANSWER`]. A successful connection is not
/// enough: QEMU accepts it even if no process in the guest does, and may keep it open.
pub(crate) fn answers(agent: u16) -> bool {
    let asked = connect(agent).and_then(|stream| {
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

#[allow(clippy::disallowed_methods)] // a tool that controls a virtual machine
fn connect(agent: u16) -> io::Result<TcpStream> {
    TcpStream::connect(("127.0.0.1", agent))
}

/// A pending wait for a process in the guest to listen on a TCP port.
pub(crate) struct Listener(TcpStream);

impl Listener {
    /// Sends the request to the agent.
    ///
    /// # Errors
    /// If the agent cannot be reached.
    pub(crate) fn new(agent: u16, port: u16) -> io::Result<Listener> {
        let mut stream = connect(agent)?;
        stream.write_all(format!("listen {port}\0").as_bytes())?;
        stream.set_nonblocking(true)?;
        Ok(Listener(stream))
    }

    /// Returns true if the agent has reported the listener.
    ///
    /// # Errors
    /// If the connection to the agent breaks.
    pub(crate) fn is_listening(&mut self) -> io::Result<bool> {
        match self.0.read(&mut [0; 16]) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Runs a command of the guest as if it were this program: same output, same exit status.
pub(crate) fn main(agent: u16, command: &str) -> ExitCode {
    match run(agent, command, &mut io::stdout()) {
        // A signal gives the same exit status as in a shell: 128 plus its number.
        Ok(status) if status < 0 => ExitCode::from(u8::try_from(128 - status).unwrap_or(255)),
        Ok(status) => ExitCode::from(u8::try_from(status).unwrap_or(255)),
        Err(error) => {
            eprintln!("error: the agent in the guest does not reply: {error}");
            ExitCode::from(255)
        }
    }
}
