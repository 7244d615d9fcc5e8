#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs check_kernels on an emulated Skylake-X, so that the AVX-512 machine code itself is executed
# on a CPU without it: run_in_bochs.sh DIR. Takes about five minutes. On Debian it needs
#   g++ bochs bochs-sdl bochsbios isolinux syslinux-common xorriso cpio
# and fetches linux-image-cloud-amd64 with apt-get, without installing it.
set -eu
tests=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
cd "$1"
rm -rf iso root serial.txt ./*.deb
mkdir -p iso/isolinux root

"$tests/build_check.sh" static "$PWD"
cp check_kernels root/check_kernels
# The first process: it may not end (the kernel would panic over half of the output).
gcc -static -O1 -Wall -Werror -x c -o root/init - <<'C'
#include <stdio.h>
#include <sys/reboot.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>
int main(void) {
  int status = -1;
  if (!fork()) execl("/check_kernels", "check_kernels", (char*)0), _exit(127);
  wait(&status);
  printf("status %d\n", status);
  fflush(stdout);
  tcdrain(1);
  sleep(1);
  return reboot(RB_AUTOBOOT);
}
C
strip root/init root/check_kernels
(cd root && printf 'init\ncheck_kernels\n' | cpio -o -H newc --quiet) | gzip -1 >iso/initrd

package=$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/.*Depends: //p' | head -n 1)
apt-get download -q "$package"
dpkg-deb --fsys-tarfile ./*.deb | tar -xO --wildcards './boot/vmlinuz*' >iso/vmlinuz
cp /usr/lib/ISOLINUX/isolinux.bin /usr/lib/syslinux/modules/bios/ldlinux.c32 iso/isolinux/
# Bochs 2.7 misreports the size of compacted state (XSAVEC 321, XSAVES 323), upon which Linux would
# give up AVX. Rebooting by a triple fault ends the emulation.
cat >iso/isolinux/isolinux.cfg <<'CFG'
default check
label check
  kernel /vmlinuz
  append initrd=/initrd console=ttyS0,115200 quiet reboot=t nokaslr mitigations=off clearcpuid=321,323
CFG
xorriso -as mkisofs -quiet -o boot.iso -b isolinux/isolinux.bin -c isolinux/boot.cat \
  -no-emul-boot -boot-load-size 4 -boot-info-table iso

cat >bochsrc <<'RC'
display_library: sdl2
cpu: model=corei7_skylake_x, ips=20000000, reset_on_triple_fault=0
megs: 512
romimage: file=/usr/share/bochs/BIOS-bochs-latest
vgaromimage: file=/usr/share/bochs/VGABIOS-lgpl-latest
ata0-master: type=cdrom, path=boot.iso, status=inserted
boot: cdrom
com1: enabled=1, mode=file, dev=serial.txt
log: bochs.log
panic: action=fatal
error: action=ignore
info: action=ignore
RC
echo continue >commands  # Debian's Bochs starts in its debugger
SDL_VIDEODRIVER=dummy SDL_AUDIODRIVER=dummy timeout 3600 \
  bochs -q -f bochsrc -rc commands >bochs.out 2>&1 </dev/null || true
cat serial.txt
grep -q '^avx512 ' serial.txt && grep -q '^status 0' serial.txt
