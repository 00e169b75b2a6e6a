/* A library with an RDMA transfer, as a Python extension has one: a queue pair that is
 * connected to itself WRITEs a block of memory to another. */

#include <infiniband/verbs.h>
#include <string.h>

enum { NO_DEVICE = 3, FAILED = 4, SIZE = 4096 };

static char from[SIZE], to[SIZE];

static int connect_to_itself(struct ibv_qp *qp, struct ibv_context *device)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE,
	};
	union ibv_gid gid;

	if (ibv_query_gid(device, 1, 1, &gid) ||
	    ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
			  IBV_QP_ACCESS_FLAGS))
		return -1;
	attr = (struct ibv_qp_attr) {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = qp->qp_num,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1,
			     .grh = { .dgid = gid, .sgid_index = 1, .hop_limit = 1 } },
	};
	if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
			  IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
			  IBV_QP_MIN_RNR_TIMER))
		return -1;
	attr = (struct ibv_qp_attr) {
		.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
		.max_rd_atomic = 1,
	};
	return ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
			     IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

int transfer(void)
{
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *device = list && *list ? ibv_open_device(*list) : NULL;

	if (!device)
		return NO_DEVICE;
	struct ibv_pd *pd = ibv_alloc_pd(device);
	struct ibv_cq *cq = ibv_create_cq(device, 4, NULL, NULL, 0);
	struct ibv_mr *source = ibv_reg_mr(pd, from, SIZE, access);
	struct ibv_mr *target = ibv_reg_mr(pd, to, SIZE, access);
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	if (!source || !target || !qp || connect_to_itself(qp, device))
		return FAILED;
	memset(from, 0x5a, SIZE);
	struct ibv_sge sge = { .addr = (uintptr_t) from, .length = SIZE, .lkey = source->lkey };
	struct ibv_send_wr *bad, write = {
		.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = (uintptr_t) to, .rkey = target->rkey },
	};
	struct ibv_wc wc;

	if (ibv_post_send(qp, &write, &bad))
		return FAILED;
	while (ibv_poll_cq(cq, 1, &wc) == 0)
		;
	return wc.status == IBV_WC_SUCCESS && memcmp(from, to, SIZE) == 0 ? 0 : FAILED;
}
