/* A program that looks verbs up by name and version, as NCCL does, and prints the library
 * of each function; and whether an mlx5 library takes the first device for its own. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

static void look(const char *name, const char *symbol, const char *version)
{
	void *library = dlopen(name, RTLD_NOW);
	void *address = library ? dlvsym(library, symbol, version) : NULL;
	Dl_info info = { .dli_fname = "nothing" };

	if (address)
		dladdr(address, &info);
	printf("%s: %s\n", name, info.dli_fname);
}

int main(void)
{
	look("libibverbs.so", "ibv_get_device_list", "IBVERBS_1.1");
	look("libibverbs.so.1", "ibv_reg_mr_iova2", "IBVERBS_1.8");
	look("librdmacm.so", "rdma_create_id", "RDMACM_1.0");
	look("librdmacm.so.1", "rdma_establish", "RDMACM_1.2");
	void *(*list)(int *) = dlsym(RTLD_DEFAULT, "ibv_get_device_list");
	void *mlx5 = dlopen("libmlx5.so.1", RTLD_NOW);
	_Bool (*is_mlx5)(void *) = mlx5 ? dlsym(mlx5, "mlx5dv_is_supported") : NULL;
	void **devices = list(NULL);

	printf("devices: %s\n", devices && *devices ? "found" : "none");
	printf("mlx5: %s\n", is_mlx5 && is_mlx5(*devices) ? "yes" : "no");
	return 0;
}
