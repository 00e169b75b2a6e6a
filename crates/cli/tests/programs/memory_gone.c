/* A queue pair that is connected to itself writes to mapped memory and, with the argument
 * "gone", to unmapped memory. With "bug", the program then reads freed memory. */
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define SIZE 8192
#define CHECK(condition)                     \
    do {                                     \
        if (!(condition)) {                  \
            perror(#condition);              \
            exit(1);                         \
        }                                    \
    } while (0)

static struct ibv_context *context;
static struct ibv_cq *cq;
static struct ibv_qp *qp;

static void connect_to_itself(void)
{
    union ibv_gid gid;
    CHECK(!ibv_query_gid(context, 1, 1, &gid));
    struct ibv_qp_attr init = {
        .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
    CHECK(!ibv_modify_qp(qp, &init,
                         IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    struct ibv_qp_attr rtr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = qp->qp_num,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 12,
        .ah_attr = {.is_global = 1,
                    .port_num = 1,
                    .grh = {.dgid = gid, .sgid_index = 1, .hop_limit = 1}}};
    CHECK(!ibv_modify_qp(qp, &rtr,
                         IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                             IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
    struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS,
                              .timeout = 18,
                              .retry_cnt = 7,
                              .rnr_retry = 7,
                              .max_rd_atomic = 1};
    CHECK(!ibv_modify_qp(qp, &rts,
                         IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                             IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

static const char *write_to(struct ibv_mr *from, struct ibv_mr *to)
{
    struct ibv_sge sge = {(uintptr_t)from->addr, SIZE, from->lkey};
    struct ibv_send_wr *bad, wr = {.sg_list = &sge,
                                   .num_sge = 1,
                                   .opcode = IBV_WR_RDMA_WRITE,
                                   .send_flags = IBV_SEND_SIGNALED,
                                   .wr.rdma = {(uintptr_t)to->addr, to->rkey}};
    struct ibv_wc wc;
    int polled;
    CHECK(!ibv_post_send(qp, &wr, &bad));
    while ((polled = ibv_poll_cq(cq, 1, &wc)) == 0)
        ;
    CHECK(polled == 1);
    return ibv_wc_status_str(wc.status);
}

int main(int argc, char **argv)
{
    int count;
    struct ibv_device **list = ibv_get_device_list(&count);
    CHECK(list && count > 0);
    CHECK((context = ibv_open_device(list[0])));
    struct ibv_pd *pd = ibv_alloc_pd(context);
    CHECK((cq = ibv_create_cq(context, 16, NULL, NULL, 0)));
    struct ibv_qp_init_attr attr = {
        .send_cq = cq, .recv_cq = cq, .cap = {8, 8, 1, 1, 0}, .qp_type = IBV_QPT_RC};
    CHECK((qp = ibv_create_qp(pd, &attr)));
    connect_to_itself();

    char *from = malloc(SIZE);
    char *to = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(from, 7, SIZE);
    struct ibv_mr *from_mr = ibv_reg_mr(pd, from, SIZE, IBV_ACCESS_LOCAL_WRITE);
    struct ibv_mr *to_mr = ibv_reg_mr(pd, to, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    CHECK(from_mr && to_mr);

    printf("there: %s\n", write_to(from_mr, to_mr));
    CHECK(memcmp(from, to, SIZE) == 0);
    if (argc > 1 && strcmp(argv[1], "gone") == 0) {
        munmap(to, SIZE);
        printf("gone: %s\n", write_to(from_mr, to_mr));
    }

    ibv_destroy_qp(qp);
    ibv_destroy_cq(cq);
    ibv_dereg_mr(from_mr);
    ibv_dereg_mr(to_mr);
    ibv_dealloc_pd(pd);
    ibv_close_device(context);
    ibv_free_device_list(list);
    free(from);
    if (argc > 1 && strcmp(argv[1], "bug") == 0)
        printf("%d\n", from[3]);
    return 0;
}
