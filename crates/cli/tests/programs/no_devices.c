/* A libibverbs that finds no device, to be built under the name that a Python wheel gives
 * its copy. Without a device, programs call none of the other functions. */

#include <stddef.h>
#include <stdlib.h>

void *ibv_get_device_list(int *count)
{
	if (count)
		*count = 0;
	return calloc(1, sizeof(void *));
}

#define NEVER_CALLED(name) void name(void) { abort(); }
NEVER_CALLED(ibv_open_device)
NEVER_CALLED(ibv_alloc_pd)
NEVER_CALLED(ibv_create_cq)
NEVER_CALLED(ibv_create_qp)
NEVER_CALLED(ibv_modify_qp)
NEVER_CALLED(ibv_query_gid)
NEVER_CALLED(ibv_reg_mr)
NEVER_CALLED(ibv_reg_mr_iova2)
