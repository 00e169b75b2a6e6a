//! Packet loss for tests, as `nft` would configure it. Panics when the kernel refuses.

use crate::netlink::{Body, send_all};

const NFNL_SUBSYS_NFTABLES: u16 = 10 << 8;
const NFNL_MSG_BATCH_BEGIN: u16 = 16;
const NFNL_MSG_BATCH_END: u16 = 17;
const NFT_MSG_NEWTABLE: u16 = NFNL_SUBSYS_NFTABLES;
const NFT_MSG_NEWCHAIN: u16 = NFNL_SUBSYS_NFTABLES | 3;
const NFT_MSG_NEWRULE: u16 = NFNL_SUBSYS_NFTABLES | 6;
const NFPROTO_INET: u8 = 1;
const NF_INET_LOCAL_IN: u32 = 1;
// Attributes and values, by the kernel's names.
const NFTA_TABLE_NAME: u16 = 1;
const NFTA_CHAIN_TABLE: u16 = 1;
const NFTA_CHAIN_NAME: u16 = 3;
const NFTA_CHAIN_HOOK: u16 = 4;
const NFTA_CHAIN_TYPE: u16 = 7;
const NFTA_HOOK_HOOKNUM: u16 = 1;
const NFTA_HOOK_PRIORITY: u16 = 2;
const NFTA_RULE_TABLE: u16 = 1;
const NFTA_RULE_CHAIN: u16 = 2;
const NFTA_RULE_EXPRESSIONS: u16 = 4;
const NFTA_LIST_ELEM: u16 = 1;
const NFTA_EXPR_NAME: u16 = 1;
const NFTA_EXPR_DATA: u16 = 2;
const NFTA_DATA_VALUE: u16 = 1;
const NFTA_DATA_VERDICT: u16 = 2;
const NFTA_VERDICT_CODE: u16 = 1;
const NF_DROP: u32 = 0;
const NFT_REG_VERDICT: u32 = 0;
const NFT_REG_1: u32 = 1;
const NFT_NG_RANDOM: u32 = 1;
const NFT_CMP_EQ: u32 = 0;
const NFT_CMP_LT: u32 = 2;
const NFT_META_L4PROTO: u32 = 16;

const TABLE: &str = "loss";
const CHAIN: &str = "in";

/// Drops `percent` % of the UDP packets that arrive in this network namespace.
pub fn lose(percent: u32) {
    let begin = Body::new(&header(0, NFNL_SUBSYS_NFTABLES >> 8));
    let end = begin.clone();
    let table = body().text(NFTA_TABLE_NAME, TABLE);
    let hook = Body::default()
        .number(NFTA_HOOK_HOOKNUM, NF_INET_LOCAL_IN)
        .number(NFTA_HOOK_PRIORITY, 0);
    let chain = body()
        .text(NFTA_CHAIN_TABLE, TABLE)
        .text(NFTA_CHAIN_NAME, CHAIN)
        .nest(NFTA_CHAIN_HOOK, hook)
        .text(NFTA_CHAIN_TYPE, "filter");
    let rule = body()
        .text(NFTA_RULE_TABLE, TABLE)
        .text(NFTA_RULE_CHAIN, CHAIN)
        .nest(NFTA_RULE_EXPRESSIONS, expressions(percent));
    let create = libc::NLM_F_CREATE;
    let result = send_all(vec![
        (NFNL_MSG_BATCH_BEGIN, 0, begin),
        (NFT_MSG_NEWTABLE, create, table),
        (NFT_MSG_NEWCHAIN, create, chain),
        (NFT_MSG_NEWRULE, create | libc::NLM_F_APPEND, rule),
        (NFNL_MSG_BATCH_END, 0, end),
    ]);
    result.unwrap_or_else(|error| panic!("netfilter: {error}"));
}

/// Builds the rule `meta l4proto udp numgen random mod 100 < percent drop`.
fn expressions(percent: u32) -> Body {
    const DREG: u16 = 1;
    const META_KEY: u16 = 2;
    const NG_MODULUS: u16 = 2;
    const NG_TYPE: u16 = 3;
    const NG_OFFSET: u16 = 4;
    const IMMEDIATE_DATA: u16 = 2;
    let meta = Body::default()
        .number(DREG, NFT_REG_1)
        .number(META_KEY, NFT_META_L4PROTO);
    let numbers = Body::default()
        .number(DREG, NFT_REG_1)
        .number(NG_MODULUS, 100)
        .number(NG_TYPE, NFT_NG_RANDOM)
        .number(NG_OFFSET, 0);
    let verdict = Body::default().number(NFTA_VERDICT_CODE, NF_DROP);
    let drop = Body::default().number(DREG, NFT_REG_VERDICT).nest(
        IMMEDIATE_DATA,
        Body::default().nest(NFTA_DATA_VERDICT, verdict),
    );
    Body::default()
        .nest(NFTA_LIST_ELEM, expression("meta", meta))
        .nest(
            NFTA_LIST_ELEM,
            compare(NFT_CMP_EQ, &[libc::IPPROTO_UDP as u8]),
        )
        .nest(NFTA_LIST_ELEM, expression("numgen", numbers))
        .nest(NFTA_LIST_ELEM, byteorder())
        .nest(NFTA_LIST_ELEM, compare(NFT_CMP_LT, &percent.to_be_bytes()))
        .nest(NFTA_LIST_ELEM, expression("immediate", drop))
}

/// Builds a conversion from host to network byte order: the `cmp` expression compares
/// bytes, so only big-endian numbers compare correctly.
fn byteorder() -> Body {
    const SREG: u16 = 1;
    const DREG: u16 = 2;
    const OP: u16 = 3;
    const LEN: u16 = 4;
    const SIZE: u16 = 5;
    const HTON: u32 = 1;
    let data = Body::default()
        .number(SREG, NFT_REG_1)
        .number(DREG, NFT_REG_1)
        .number(OP, HTON)
        .number(LEN, 4)
        .number(SIZE, 4);
    expression("byteorder", data)
}

fn compare(how: u32, with: &[u8]) -> Body {
    const SREG: u16 = 1;
    const OP: u16 = 2;
    const DATA: u16 = 3;
    let value = Body::default().attribute(NFTA_DATA_VALUE, with);
    let data = Body::default()
        .number(SREG, NFT_REG_1)
        .number(OP, how)
        .nest(DATA, value);
    expression("cmp", data)
}

fn expression(name: &str, data: Body) -> Body {
    Body::default()
        .text(NFTA_EXPR_NAME, name)
        .nest(NFTA_EXPR_DATA, data)
}

fn body() -> Body {
    Body::new(&header(NFPROTO_INET, 0))
}

/// Builds a `struct nfgenmsg`.
fn header(family: u8, resource: u16) -> [u8; 4] {
    let [high, low] = resource.to_be_bytes();
    [family, 0, high, low]
}
