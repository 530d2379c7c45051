# Run a program on a root of its own, laid over this machine's: what it changes there goes with it.
#     unshare --mount --propagation private sh own_root.sh PROGRAM…
set -eu
mount -t tmpfs -o mode=755 own /mnt
mkdir /mnt/upper /mnt/work /mnt/whole
mount -t overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work root /mnt/whole
# An overlay shows what changes below it, as accounts that others make meanwhile: their locks come
# and go, and some go before they are copied.
cp -a /etc /mnt/etc 2>/dev/null || :
rm -f /mnt/etc/*.lock
mount --bind /mnt/etc /mnt/whole/etc
mount --bind /etc/sudoers.d /mnt/whole/etc/sudoers.d
# As on a worker, apt keeps what it has made of its lists: an image for containers makes it each time
# anew. That manual pages are indexed after each package is of no use here.
rm -f /mnt/etc/apt/apt.conf.d/docker-clean /mnt/whole/var/lib/man-db/auto-update
mount -t tmpfs -o mode=755 dev /mnt/whole/dev
for each in null zero full random urandom tty; do cp -a "/dev/$each" /mnt/whole/dev; done
mkdir -p /mnt/whole/dev/pts /mnt/whole/dev/shm /mnt/whole/dev/disk/by-id
ln -s /proc/self/fd /mnt/whole/dev/fd
for each in dev/pts dev/shm proc sys tmp; do mount --rbind "/$each" "/mnt/whole/$each"; done
# Settings of the kernel are the machine's: a file that says what the kernel would stands in.
echo 'always [madvise] never' >/mnt/pages
mount --bind /mnt/pages /mnt/whole/sys/kernel/mm/transparent_hugepage/enabled
mount -t tmpfs -o mode=755 run /mnt/whole/run
mkdir -m 755 /mnt/whole/run/sshd
exec chroot /mnt/whole "$@"
