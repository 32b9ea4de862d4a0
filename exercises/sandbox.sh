# sh sandbox.sh ROOT PYTHON FOLDER [KIND WHAT PATH]... -- COMMAND [ARGUMENT]...
#
# Builds a file system on ROOT, an empty folder, from one KIND WHAT PATH after the other, makes it the root, and runs
# COMMAND in FOLDER. `sandbox.py` starts this script with unshare, as the first process of new namespaces. The shell
# waits for all processes that end in them; when it ends, all of them end. What fails here ends it before COMMAND.

set -eu
umask 022
root=$1 python=$2 folder=$3
shift 3

mount -t tmpfs -o mode=755,size=16m,nosuid,nodev tmpfs "$root"
while [ "$1" != -- ]; do
    kind=$1 what=$2 path=$root$3
    shift 3
    if [ "$kind" = hide ] && [ ! -d "$path" ]; then continue; fi
    mkdir -p "${path%/*}"
    case $kind in
    text) printf %s "$what" > "$path" ;;
    link) ln -s "$what" "$path" ;;
    empty | hide) # a folder in memory; WHAT: its mount options; hide: only over a folder that is there
        mkdir -p "$path"
        mount -t tmpfs -o "$what,nosuid,nodev" tmpfs "$path"
        ;;
    show) # a file or folder of the machine
        if [ -d "$what" ]; then mkdir -p "$path"; elif [ ! -e "$path" ]; then : > "$path"; fi
        mount --rbind "$what" "$path"
        ;;
    esac
done
shift
mkdir "$root/proc" "$root/outside"
mount -t proc -o nosuid,nodev,noexec proc "$root/proc"

"$python" -I -S -c '
import fcntl, socket, struct
socket.sethostname("sandbox")
with socket.socket() as any_socket:  # 127.0.0.1: SIOCSIFFLAGS, IFF_UP of netdevice(7)
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sH14x", b"lo", 1))
'
pivot_root "$root" "$root/outside"
cd /
umount -l /outside
rmdir /outside
# Every mount becomes read-only, with those that came along in a folder that is shown; see proc_pid_mountinfo(5).
while read -r _ _ _ _ path options _; do
    nodev=,nodev
    case $path in
    /tmp | /dev/shm | /proc) continue ;;
    /dev/*) nodev= ;;
    esac
    mount -o "remount,bind,$options,ro,nosuid$nodev" none "$(printf %b "$path")"
done < /proc/self/mountinfo

# No shared memory and no messages of System V: they stay in memory when no process uses them.
echo 0 > /proc/sys/kernel/shmmni
echo 0 > /proc/sys/kernel/msgmni

cd "$folder"
"$@" || exit
