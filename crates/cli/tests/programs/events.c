/* Sends messages to itself, waits for asynchronous events, and prints each with the state of the
 * queue pair and of the port. The argument is the number of events. */
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MESSAGES 8

static void check(int ok, const char *what)
{
	if (!ok) {
		perror(what);
		exit(1);
	}
}

static void connect_to_itself(struct ibv_qp *qp, union ibv_gid *gid)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = IBV_ACCESS_LOCAL_WRITE,
	};
	check(!ibv_modify_qp(qp, &attr,
			     IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
	      "INIT");
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = qp->qp_num,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 1,
		.ah_attr = {
			.is_global = 1,
			.port_num = 1,
			.grh = { .dgid = *gid, .sgid_index = 1, .hop_limit = 1 },
		},
	};
	check(!ibv_modify_qp(qp, &attr,
			     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
	      "RTR");
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS,
		.timeout = 14,
		.retry_cnt = 7,
		.rnr_retry = 7,
		.max_rd_atomic = 1,
	};
	check(!ibv_modify_qp(qp, &attr,
			     IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
				     IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC),
	      "RTS");
}

int main(int argc, char **argv)
{
	static char memory[4096];
	struct ibv_device **devices = ibv_get_device_list(NULL);
	check(argc == 2 && devices && devices[0], "a device");
	struct ibv_context *context = ibv_open_device(devices[0]);
	check(context != NULL, "ibv_open_device");
	union ibv_gid gid;
	check(!ibv_query_gid(context, 1, 1, &gid), "ibv_query_gid");
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_cq *cq = ibv_create_cq(context, 4 * MESSAGES, NULL, NULL, 0);
	struct ibv_srq_init_attr srq_init = { .attr = { .max_wr = 2 * MESSAGES, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &srq_init);
	check(pd && mr && cq && srq, "objects");
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.srq = srq,
		.cap = { .max_send_wr = MESSAGES, .max_send_sge = 1 },
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	check(qp != NULL, "ibv_create_qp");
	connect_to_itself(qp, &gid);

	struct ibv_sge sge = { .addr = (uintptr_t)memory, .length = 64, .lkey = mr->lkey };
	for (int i = 0; i < 2 * MESSAGES; i++) {
		struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
		check(!ibv_post_srq_recv(srq, &wr, &bad), "ibv_post_srq_recv");
	}
	for (int i = 0; i < MESSAGES; i++) {
		struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
		check(!ibv_post_send(qp, &wr, &bad), "ibv_post_send");
	}

	/* An event that does not come is a failure. */
	alarm(60);
	for (int i = 0; i < atoi(argv[1]); i++) {
		struct ibv_async_event event;
		check(!ibv_get_async_event(context, &event), "ibv_get_async_event");
		struct ibv_qp_attr attr;
		struct ibv_qp_init_attr ignored;
		check(!ibv_query_qp(qp, &attr, IBV_QP_STATE, &ignored), "ibv_query_qp");
		struct ibv_port_attr port;
		check(!ibv_query_port(context, 1, &port), "ibv_query_port");
		union ibv_gid now;
		int has_gid = !ibv_query_gid(context, 1, 1, &now) && !memcmp(&now, &gid, sizeof gid);
		printf("%s, %s", ibv_event_type_str(event.event_type),
		       attr.qp_state == IBV_QPS_ERR ? "queue pair in error" : "queue pair ready");
		printf(", %s, %s\n", ibv_port_state_str(port.state), has_gid ? "GID" : "no GID");
		fflush(stdout);
		ibv_ack_async_event(&event);
	}
	return 0;
}
