# Run a program on a root of its own, laid over this machine's: what it changes there goes with it.
#     unshare --mount --propagation private sh own_root.sh PROGRAM…
set -eu
mount -t tmpfs -o mode=755 own /mnt
mkdir /mnt/upper /mnt/work /mnt/whole
mount -t overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work root /mnt/whole
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
