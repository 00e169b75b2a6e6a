/* A test with two planted bugs in its error paths, for `ferroce run --sweep`: it crashes if
 * the second registration fails, and hangs if the completion queue cannot be created. All
 * other errors end it with status 1. */
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void check(int ok, const char *what)
{
	if (!ok) {
		perror(what);
		exit(1);
	}
}

int main(void)
{
	static char memory[2][4096];
	struct ibv_device **devices = ibv_get_device_list(NULL);
	check(devices && devices[0], "ibv_get_device_list");
	struct ibv_context *context = ibv_open_device(devices[0]);
	check(context != NULL, "ibv_open_device");
	struct ibv_pd *pd = ibv_alloc_pd(context);
	check(pd != NULL, "ibv_alloc_pd");

	struct ibv_mr *first = ibv_reg_mr(pd, memory[0], 4096, IBV_ACCESS_LOCAL_WRITE);
	check(first != NULL, "ibv_reg_mr");
	struct ibv_mr *second = ibv_reg_mr(pd, memory[1], 4096, IBV_ACCESS_LOCAL_WRITE);
	/* Planted: nobody checks the second registration. */
	printf("two regions of %zu bytes\n", first->length + second->length);

	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	/* Planted: waits for a completion queue that never comes. */
	while (cq == NULL)
		pause();

	check(ibv_destroy_cq(cq) == 0, "ibv_destroy_cq");
	check(ibv_dereg_mr(second) == 0, "ibv_dereg_mr");
	check(ibv_dereg_mr(first) == 0, "ibv_dereg_mr");
	check(ibv_dealloc_pd(pd) == 0, "ibv_dealloc_pd");
	check(ibv_close_device(context) == 0, "ibv_close_device");
	ibv_free_device_list(devices);
	return 0;
}
