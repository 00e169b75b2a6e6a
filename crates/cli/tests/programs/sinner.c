/* A program that runs here and would fail on hardware, for `ferroce run --strict`: two
 * connected queue pairs of one process, and one mistake for each argument. */
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char memory[8192];
static struct ibv_context *context;
static struct ibv_mr *mr;
static struct ibv_cq *cq;
static struct ibv_qp *qps[2];
static union ibv_gid gid;
static int timeout = 14;

static void check(int ok, const char *what)
{
	if (!ok) {
		perror(what);
		exit(1);
	}
}

static void make_qp(int end)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
	qps[end] = ibv_create_qp(mr->pd, &init);
	check(qps[end] != NULL, "ibv_create_qp");
	check(!ibv_modify_qp(qps[end], &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
			     IBV_QP_ACCESS_FLAGS), "ibv_modify_qp to INIT");
}

static void join_qp(int end)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .min_rnr_timer = 12,
		.dest_qp_num = qps[!end]->qp_num,
		.ah_attr = { .is_global = 1, .port_num = 1,
			     .grh = { .dgid = gid, .sgid_index = 1, .hop_limit = 64 } },
		.timeout = timeout, .retry_cnt = 7, .rnr_retry = 6, .max_rd_atomic = 1,
		.max_dest_rd_atomic = 1,
	};
	check(!ibv_modify_qp(qps[end], &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
			     IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
			     IBV_QP_MIN_RNR_TIMER), "ibv_modify_qp to RTR");
	attr.qp_state = IBV_QPS_RTS;
	check(!ibv_modify_qp(qps[end], &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
			     IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC),
	      "ibv_modify_qp to RTS");
}

static int write_some(unsigned flags)
{
	struct ibv_sge sge = { .addr = (uintptr_t)memory, .length = 64, .lkey = mr->lkey };
	struct ibv_send_wr *bad, wr = {
		.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = flags,
		.wr.rdma = { .remote_addr = (uintptr_t)memory + 4096, .rkey = mr->rkey },
	};
	return ibv_post_send(qps[0], &wr, &bad);
}

static void await(void)
{
	struct ibv_wc wc;
	while (ibv_poll_cq(cq, 1, &wc) == 0)
		;
	if (wc.status != IBV_WC_SUCCESS) {
		printf("%s\n", ibv_wc_status_str(wc.status));
		exit(1);
	}
}

int main(int argc, char **argv)
{
	const char *sin = argc > 1 ? argv[1] : "none";
	struct ibv_device **devices = ibv_get_device_list(NULL);
	check(devices && devices[0], "ibv_get_device_list");
	context = ibv_open_device(devices[0]);
	check(context != NULL, "ibv_open_device");
	struct ibv_pd *pd = ibv_alloc_pd(context);
	mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	check(pd && mr && cq && !ibv_query_gid(context, 1, 1, &gid), "objects");
	if (!strcmp(sin, "timeout"))
		timeout = 0;
	for (int end = 0; end < 2; end++)
		make_qp(end);
	for (int end = 0; end < 2; end++)
		join_qp(end);
	if (!strcmp(sin, "unsignaled")) {
		/* Acknowledged work makes room here, and never on hardware. */
		for (int posted = 0; posted < 100;)
			posted += write_some(0) == 0;
		puts("done");
		return 0;
	}
	check(!write_some(IBV_SEND_SIGNALED), "ibv_post_send");
	if (!strcmp(sin, "buffer"))
		memory[7]++; /* before the completion */
	await();
	puts("done");
	return 0;
}
