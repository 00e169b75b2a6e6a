//! Names of error numbers, for `fail VERB N ERRNO`.

macro_rules! errnos {
    ($($name:ident $number:literal,)*) => {
        /// Returns the number of a name such as `ENOMEM` on Linux.
        pub fn errno_number(name: &str) -> Option<i32> {
            match name {
                $(stringify!($name) => Some($number),)*
                _ => None,
            }
        }

        /// Returns the name of a number.
        pub fn errno_name(number: i32) -> Option<&'static str> {
            match number {
                $($number => Some(stringify!($name)),)*
                _ => None,
            }
        }
    };
}

// As in <asm-generic/errno.h>: the same for all architectures that Ferroce supports.
errnos! {
    EPERM 1, ENOENT 2, EINTR 4, EIO 5, ENXIO 6, E2BIG 7, EBADF 9, EAGAIN 11, ENOMEM 12,
    EACCES 13, EFAULT 14, EBUSY 16, EEXIST 17, ENODEV 19, EINVAL 22, ENFILE 23, EMFILE 24,
    ENOSPC 28, EPIPE 32, ERANGE 34, ENODATA 61, EPROTO 71, EOVERFLOW 75, EMSGSIZE 90,
    EOPNOTSUPP 95, EADDRINUSE 98, EADDRNOTAVAIL 99, ENETDOWN 100, ENETUNREACH 101,
    ECONNABORTED 103, ECONNRESET 104, ENOBUFS 105, EISCONN 106, ENOTCONN 107, ETIMEDOUT 110,
    ECONNREFUSED 111, EHOSTUNREACH 113, EALREADY 114, EINPROGRESS 115,
}
