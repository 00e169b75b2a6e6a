//! Functions that provider libraries import from libibverbs.
//!
//! perftest, UCX, libfabric and pyverbs are linked with libmlx5 and libefa. These load only
//! if each of the names exists, in the private version node of their rdma-core release. For
//! devices of this library none is called.

use core::ffi::{c_int, c_void};
use core::sync::atomic::AtomicU8;

use crate::errno::{minus_one, null, refuse};

/// Defines the versions of a function in the nodes other than 34. Only the link of the shared
/// object has the nodes.
macro_rules! versions {
    ($($name:ident)*) => {
        $(
            versions!(@ $name, "33");
            versions!(@ $name, "57");
            versions!(@ $name, "59");
            versions!(@ $name, "64");
            versions!(@ $name, "65");
        )*
    };
    (@ $name:ident, $node:literal) => {
        #[cfg(feature = "versions")]
        core::arch::global_asm!(
            ".pushsection .text.versions,\"ax\",@progbits",
            concat!(".globl __private_", $node, "_", stringify!($name)),
            concat!(".type __private_", $node, "_", stringify!($name), ",@function"),
            concat!("__private_", $node, "_", stringify!($name), ":"),
            jump!(stringify!($name)),
            concat!(
                ".symver __private_", $node, "_", stringify!($name), ",",
                stringify!($name), "@IBVERBS_PRIVATE_", $node
            ),
            ".popsection",
        );
    };
}

#[cfg(all(feature = "versions", target_arch = "x86_64"))]
macro_rules! jump {
    ($to:expr) => {
        concat!("jmp ", $to, "@PLT")
    };
}

#[cfg(all(feature = "versions", target_arch = "aarch64"))]
macro_rules! jump {
    ($to:expr) => {
        concat!("b ", $to)
    };
}

/// Defines functions that return EOPNOTSUPP.
macro_rules! unsupported {
    ($($name:ident)*) => {
        $(
            #[unsafe(no_mangle)]
            pub extern "C" fn $name() -> c_int {
                refuse(libc::EOPNOTSUPP, format_args!("{} is for provider libraries", stringify!($name)))
            }
        )*
        versions!($($name)*);
    };
}

/// Defines functions that return NULL.
macro_rules! no_object {
    ($($name:ident)*) => {
        $(
            #[unsafe(no_mangle)]
            pub extern "C" fn $name() -> *mut c_void {
                null(refuse(libc::EOPNOTSUPP, format_args!("{} is for provider libraries", stringify!($name))))
            }
        )*
        versions!($($name)*);
    };
}

/// Defines functions that do nothing.
macro_rules! nothing {
    ($($name:ident)*) => {
        $(
            #[unsafe(no_mangle)]
            pub extern "C" fn $name() {}
        )*
    };
}

unsupported! {
    execute_ioctl ibv_cmd_advise_mr ibv_cmd_alloc_dm ibv_cmd_alloc_dmah ibv_cmd_alloc_mw
    ibv_cmd_alloc_pd ibv_cmd_attach_mcast ibv_cmd_close_xrcd ibv_cmd_create_ah
    ibv_cmd_create_comp_cntr ibv_cmd_create_counters ibv_cmd_create_cq
    ibv_cmd_create_cq_ex ibv_cmd_create_cq_ex2 ibv_cmd_create_flow
    ibv_cmd_create_flow_action_esp ibv_cmd_create_qp ibv_cmd_create_qp_ex
    ibv_cmd_create_qp_ex2 ibv_cmd_create_rwq_ind_table ibv_cmd_create_srq
    ibv_cmd_create_srq_ex ibv_cmd_create_wq ibv_cmd_dealloc_mw ibv_cmd_dealloc_pd
    ibv_cmd_dereg_mr ibv_cmd_destroy_ah ibv_cmd_destroy_comp_cntr
    ibv_cmd_destroy_counters ibv_cmd_destroy_cq ibv_cmd_destroy_flow
    ibv_cmd_destroy_flow_action ibv_cmd_destroy_qp ibv_cmd_destroy_rwq_ind_table
    ibv_cmd_destroy_srq ibv_cmd_destroy_wq ibv_cmd_detach_mcast ibv_cmd_export_dmabuf_fd
    ibv_cmd_free_dm ibv_cmd_free_dmah ibv_cmd_get_context ibv_cmd_inc_comp_cntr
    ibv_cmd_inc_err_comp_cntr ibv_cmd_modify_cq ibv_cmd_modify_flow_action_esp
    ibv_cmd_modify_qp ibv_cmd_modify_qp_ex ibv_cmd_modify_srq ibv_cmd_modify_wq
    ibv_cmd_open_qp ibv_cmd_open_xrcd ibv_cmd_poll_cq ibv_cmd_post_recv
    ibv_cmd_post_send ibv_cmd_post_srq_recv ibv_cmd_qp_attach_comp_cntr ibv_cmd_query_comp_cntr_caps
    ibv_cmd_query_context ibv_cmd_query_device_any ibv_cmd_query_mr ibv_cmd_query_port
    ibv_cmd_query_port_speed ibv_cmd_query_qp ibv_cmd_query_srq ibv_cmd_read_comp_cntr
    ibv_cmd_read_counters ibv_cmd_read_err_comp_cntr ibv_cmd_reg_dm_mr
    ibv_cmd_reg_dmabuf_mr ibv_cmd_reg_mr ibv_cmd_reg_mr_ex ibv_cmd_req_notify_cq
    ibv_cmd_rereg_mr ibv_cmd_resize_cq ibv_cmd_set_comp_cntr ibv_cmd_set_err_comp_cntr
}

no_object! {
    _verbs_init_and_alloc_context ibv_dmabuf_heap_alloc ibv_dmabuf_heap_cc_shared_init
    verbs_open_device
}

nothing! {
    __verbs_log ibv_dmabuf_heap_destroy ibv_dmabuf_heap_free verbs_init_cq verbs_set_ops
    verbs_uninit_context
}
versions! {
    __verbs_log ibv_dmabuf_heap_destroy ibv_dmabuf_heap_free verbs_init_cq verbs_set_ops
    verbs_uninit_context
}

// Provider libraries call these when they are loaded. The library uses no provider.
nothing! {
    ibv_register_driver verbs_register_driver_33 verbs_register_driver_34 verbs_register_driver_57
    verbs_register_driver_59 verbs_register_driver_64 verbs_register_driver_65
}

/// Returns the number of attributes of an ioctl command: commands have none here.
#[unsafe(no_mangle)]
pub extern "C" fn __ioctl_final_num_attrs() -> u32 {
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_read_ibdev_sysfs_file() -> c_int {
    let why = "ibv_read_ibdev_sysfs_file is for provider libraries";
    minus_one(refuse(libc::ENOENT, why))
}

versions! {
    __ioctl_final_num_attrs ibv_query_gid_type ibv_read_ibdev_sysfs_file
    ibv_wr_opcode_str
}

/// True if objects of a removed device may be destroyed. libmlx4 writes to it.
#[allow(non_upper_case_globals)] // C's name
#[unsafe(no_mangle)]
pub static verbs_allow_disassociate_destroy: AtomicU8 = AtomicU8::new(0);

// The same variable for the other nodes, at other addresses: no user compares them.
#[cfg(feature = "versions")]
core::arch::global_asm!(
    ".pushsection .bss.versions,\"aw\",@nobits",
    ".macro data symbol, node",
    ".globl \\symbol",
    ".type \\symbol,@object",
    ".size \\symbol,1",
    "\\symbol:",
    ".zero 1",
    ".symver \\symbol, verbs_allow_disassociate_destroy@\\node",
    ".endm",
    "data __private_33_allow_destroy, IBVERBS_PRIVATE_33",
    "data __private_57_allow_destroy, IBVERBS_PRIVATE_57",
    "data __private_59_allow_destroy, IBVERBS_PRIVATE_59",
    "data __private_64_allow_destroy, IBVERBS_PRIVATE_64",
    "data __private_65_allow_destroy, IBVERBS_PRIVATE_65",
    ".purgem data",
    ".popsection",
);
