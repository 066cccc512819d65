/* The lightest client for barriers, which h2load cannot play: many connections that send prepared bytes and wait for
 * each other. It reads from standard input what to do, does it, and writes the moments that it was asked for, as
 * doubles, to standard output. Numbers are 32 bits in the machine's order, behind the letter of what is to be done:
 *
 *   C port            connect once more, to loopback; connections are numbered as they are made
 *   S which n bytes   send
 *   R which n         wait for n bytes of this one
 *   B n               wait until every connection has had n bytes more
 *   E n               wait until n more calls on each connection have been answered (HTTP/2 streams that ended)
 *   A which n         the same, of this one alone
 *   W n               wait until every connection has had n more messages on its first stream, which stays open
 *   P n               sleep n microseconds
 *   T                 note the moment
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { ROOM = 1 << 16, MOST = 1 << 14, EVENTS = 256 };
enum { DATA = 0, HEADERS = 1, RST_STREAM = 3, PING = 6, GOAWAY = 7, ENDED = 1, ACK = 1 };

typedef struct {
    int socket;
    uint32_t held;     /* bytes of a frame that is not whole yet, or that nobody waited for */
    uint32_t ended;    /* streams, since they were last waited for */
    uint32_t watched;  /* messages on the first stream, likewise */
    unsigned char *room;
} Connection;

static Connection all[MOST];
static uint32_t count;
static int ready;

static void give_up(const char *why) {
    fprintf(stderr, "gather: %s (%s)\n", why, strerror(errno));
    exit(2);
}

static uint32_t number(void) {
    uint32_t value;
    if (fread(&value, sizeof value, 1, stdin) != 1) give_up("the script ends in the middle");
    return value;
}

static void connect_to(uint32_t port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int one = 1;
    if (count == MOST) give_up("too many connections");
    Connection *own = &all[count];
    own->socket = socket(AF_INET, SOCK_STREAM, 0);
    own->room = malloc(ROOM);
    if (connect(own->socket, (struct sockaddr *)&to, sizeof to)) give_up("cannot connect");
    setsockopt(own->socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = count++};
    if (epoll_ctl(ready, EPOLL_CTL_ADD, own->socket, &event)) give_up("cannot wait for a connection");
}

static void send_all(Connection *own, const unsigned char *bytes, uint32_t size) {
    while (size) {
        ssize_t sent = send(own->socket, bytes, size, MSG_NOSIGNAL);
        if (sent <= 0) give_up("cannot send");
        bytes += sent;
        size -= sent;
    }
}

static void read_more(Connection *own) {
    ssize_t got = recv(own->socket, own->room + own->held, ROOM - own->held, 0);
    if (got <= 0) give_up("the server closed a connection");
    own->held += got;
}

static void drop(Connection *own, uint32_t size) {
    memmove(own->room, own->room + size, own->held - size);
    own->held -= size;
}

/* Counts the streams that ended with what came in, and answers pings. */
static void take_frames(Connection *own) {
    uint32_t at = 0;
    while (own->held - at >= 9) {
        unsigned char *frame = own->room + at, answer[17];
        uint32_t size = frame[0] << 16 | frame[1] << 8 | frame[2];
        if (own->held - at < 9 + size) break;
        if (frame[3] == DATA || frame[3] == HEADERS) own->ended += frame[4] & ENDED;
        own->watched += frame[3] == DATA && frame[8] == 1 && !(frame[5] | frame[6] | frame[7]);
        if (frame[3] == PING && !(frame[4] & ACK)) {
            memcpy(answer, frame, sizeof answer);
            answer[4] = ACK;
            send_all(own, answer, sizeof answer);
        }
        if ((frame[3] == RST_STREAM || frame[3] == GOAWAY) && frame[8 + size]) give_up("the server refused a call");
        at += 9 + size;
    }
    drop(own, at);
}

/* What has come on a connection of what is waited for: that many bytes, calls or watched messages. */
static uint32_t *come(Connection *own, int what) {
    return what == 'B' ? &own->held : what == 'W' ? &own->watched : &own->ended;
}

static void take(Connection *own, int what, uint32_t size) {
    if (what == 'B') drop(own, size);
    else *come(own, what) -= size;
}

/* Every connection has had what is wanted of it. */
static void gather(uint32_t wanted, int what) {
    struct epoll_event events[EVENTS];
    uint32_t missing = 0;
    for (uint32_t which = 0; which < count; which++) missing += *come(&all[which], what) < wanted;
    while (missing) {
        int found = epoll_wait(ready, events, EVENTS, -1);
        for (int place = 0; place < found; place++) {
            Connection *own = &all[events[place].data.u32];
            int had = *come(own, what) >= wanted;
            read_more(own);
            if (what != 'B') take_frames(own);
            missing -= !had && *come(own, what) >= wanted;
        }
    }
    for (uint32_t which = 0; which < count; which++) take(&all[which], what, wanted);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

int main(void) {
    static unsigned char bytes[ROOM];
    static double moments[ROOM];
    uint32_t noted = 0, which, size;
    setvbuf(stdin, NULL, _IOFBF, 1 << 20);
    ready = epoll_create1(0);
    for (int what; (what = getchar()) != EOF;) {
        switch (what) {
        case 'C':
            connect_to(number());
            break;
        case 'S':
            which = number(), size = number();
            if (size > ROOM || which >= count || fread(bytes, 1, size, stdin) != size) give_up("a bad script");
            send_all(&all[which], bytes, size);
            break;
        case 'R':
            which = number(), size = number();
            while (all[which].held < size) read_more(&all[which]);
            drop(&all[which], size);
            break;
        case 'A':
            which = number(), size = number();
            while (all[which].ended < size) read_more(&all[which]), take_frames(&all[which]);
            all[which].ended -= size;
            break;
        case 'B':
        case 'E':
        case 'W':
            gather(number(), what);
            break;
        case 'P':
            usleep(number());
            break;
        case 'T':
            if (noted == ROOM) give_up("too many moments");
            moments[noted++] = now();
            break;
        default:
            give_up("a bad script");
        }
    }
    return fwrite(moments, sizeof *moments, noted, stdout) != noted;
}
