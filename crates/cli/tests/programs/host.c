/* A program that loads a library with dlopen and calls its `transfer`, as Python does:
 * host LIBRARY [deepbind] [global]. Its exit status is the result. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(int count, char **words)
{
	int flags = RTLD_NOW;

	for (int word = 2; word < count; word++) {
		flags |= strcmp(words[word], "deepbind") == 0 ? RTLD_DEEPBIND : 0;
		flags |= strcmp(words[word], "global") == 0 ? RTLD_GLOBAL : 0;
	}
	void *library = dlopen(words[1], flags);
	int (*transfer)(void) = library ? dlsym(library, "transfer") : NULL;

	if (!transfer) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	return transfer();
}
