/*
 * Times RDMA WRITEs between two queue pairs of one process, from and to memory of the host and
 * of a GPU.
 *
 *     cc -O2 -o bandwidth bandwidth.c -libverbs -ldl
 *     ferroce run ./bandwidth
 */
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROOM = 32 << 20, DEPTH = 8 };

#define CHECK(condition)                                                        \
    do {                                                                        \
        if (!(condition)) {                                                     \
            fprintf(stderr, "%s:%d: %s: %m\n", __FILE__, __LINE__, #condition); \
            exit(1);                                                            \
        }                                                                       \
    } while (0)

static struct ibv_pd *pd;
static struct ibv_cq *cq;

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static struct ibv_qp *create(void)
{
    struct ibv_qp_init_attr init = {
        .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
        .cap = { .max_send_wr = 64, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
    };
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_INIT, .port_num = 1,
        .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
    };
    struct ibv_qp *qp = ibv_create_qp(pd, &init);

    CHECK(qp);
    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
                                        IBV_QP_ACCESS_FLAGS));
    return qp;
}

static void connect_to(struct ibv_qp *qp, uint32_t other, int index)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_4096, .dest_qp_num = other,
        .max_dest_rd_atomic = 16, .min_rnr_timer = 1,
        .ah_attr = { .is_global = 1, .port_num = 1, .grh = { .sgid_index = index } },
    };

    CHECK(!ibv_query_gid(pd->context, 1, index, &attr.ah_attr.grh.dgid));
    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                        IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                                        IBV_QP_MIN_RNR_TIMER));
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = 14;
    attr.retry_cnt = attr.rnr_retry = 7;
    attr.max_rd_atomic = 16;
    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                        IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                                        IBV_QP_MAX_QP_RD_ATOMIC));
}

static void post(struct ibv_qp *qp, struct ibv_mr *from, struct ibv_mr *to, uint32_t length)
{
    struct ibv_sge sge = { (uint64_t)from->addr, length, from->lkey };
    struct ibv_send_wr *bad, wr = {
        .opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1,
        .wr.rdma = { (uint64_t)to->addr, to->rkey },
    };

    CHECK(!ibv_post_send(qp, &wr, &bad));
}

static void complete(void)
{
    struct ibv_wc wc;
    int got;

    while (!(got = ibv_poll_cq(cq, 1, &wc)))
        ;
    CHECK(got == 1 && wc.status == IBV_WC_SUCCESS);
}

/* Returns microseconds per WRITE with up to `depth` in flight. */
static double run(struct ibv_qp *qp, struct ibv_mr *from, struct ibv_mr *to, uint32_t length,
                  int depth)
{
    double begin = 0;
    int posted = 0, done = 0, warm = depth, rounds;

    rounds = length <= 65536 ? 2000 : length <= 1 << 20 ? 200 : 20;
    while (done < rounds + warm) {
        while (posted < rounds + warm && posted - done < depth) {
            post(qp, from, to, length);
            posted++;
        }
        complete();
        if (++done == warm)
            begin = now();
    }
    return (now() - begin) / rounds;
}

int main(void)
{
    static const uint32_t lengths[] = { 8, 4096, 65536, 1 << 20, 16 << 20 };
    static const char *names[] = { "host", "GPU" };
    int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *context;
    struct ibv_device **list = ibv_get_device_list(NULL);
    struct ibv_context *device = list && list[0] ? ibv_open_device(list[0]) : NULL;
    struct ibv_mr *memory[2][2];
    struct ibv_qp *qps[2];

    CHECK(cuda && device);
    int (*init)(unsigned) = dlsym(cuda, "cuInit");
    int (*retain)(void **, int) = dlsym(cuda, "cuDevicePrimaryCtxRetain");
    int (*push)(void *) = dlsym(cuda, "cuCtxPushCurrent_v2");
    int (*allocate)(uint64_t *, size_t) = dlsym(cuda, "cuMemAlloc_v2");
    CHECK(!init(0) && !retain(&context, 0) && !push(context));
    CHECK((pd = ibv_alloc_pd(device)) && (cq = ibv_create_cq(device, 64, NULL, NULL, 0)));
    for (int i = 0; i < 2; i++) {
        uint64_t gpu;
        void *host = aligned_alloc(4096, ROOM);
        memset(host, 1, ROOM);
        CHECK(!allocate(&gpu, ROOM));
        CHECK(memory[0][i] = ibv_reg_mr(pd, host, ROOM, access));
        CHECK(memory[1][i] = ibv_reg_mr(pd, (void *)gpu, ROOM, access));
        qps[i] = create();
    }
    connect_to(qps[0], qps[1]->qp_num, 1);
    connect_to(qps[1], qps[0]->qp_num, 1);
    printf("%-6s %-6s %10s %12s %10s\n", "from", "to", "bytes", "alone, us", "GB/s");
    for (int from = 0; from < 2; from++)
        for (int to = 0; to < 2; to++)
            for (unsigned i = 0; i < sizeof(lengths) / sizeof(*lengths); i++) {
                double alone = run(qps[0], memory[from][0], memory[to][1], lengths[i], 1);
                double many = run(qps[0], memory[from][0], memory[to][1], lengths[i], DEPTH);
                printf("%-6s %-6s %10u %12.1f %10.3f\n", names[from], names[to], lengths[i], alone,
                       lengths[i] / many / 1e3);
                fflush(stdout);
            }
    return 0;
}
