/* Sends a megabyte over TCP and receives it back. "server" accepts one connection from "client". */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define PORT 7471
#define SIZE (1 << 20)
#define CHECK(condition)        \
    do {                        \
        if (!(condition)) {     \
            perror(#condition); \
            exit(1);            \
        }                       \
    } while (0)

static char bytes[SIZE], back[SIZE];

static void send_all(int fd, const char *from)
{
    for (ssize_t done = 0, n; done < SIZE; done += n)
        CHECK((n = send(fd, from + done, SIZE - done, 0)) > 0);
}

static void receive_all(int fd, char *to)
{
    for (ssize_t done = 0, n; done < SIZE; done += n) {
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        CHECK(poll(&ready, 1, -1) == 1);
        CHECK((n = recv(fd, to + done, SIZE - done, 0)) > 0);
    }
}

int main(int argc, char **argv)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons(PORT),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd, one = 1;
    setbuf(stdout, NULL);
    CHECK((fd = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
    if (argc > 1 && strcmp(argv[1], "server") == 0) {
        CHECK(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0);
        CHECK(bind(fd, (struct sockaddr *)&address, sizeof address) == 0);
        CHECK(listen(fd, 1) == 0);
        puts("ready");
        int connection = accept(fd, NULL, NULL);
        CHECK(connection >= 0);
        receive_all(connection, back);
        send_all(connection, back);
        /* The client closes first. */
        CHECK(recv(connection, back, 1, 0) == 0);
        close(connection);
    } else {
        for (int i = 0; i < SIZE; i++)
            bytes[i] = (char)(i * 7 + i / 256);
        CHECK(connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
        send_all(fd, bytes);
        receive_all(fd, back);
        puts(memcmp(bytes, back, SIZE) == 0 ? "the same bytes" : "other bytes");
        shutdown(fd, SHUT_RDWR);
    }
    close(fd);
    return 0;
}
