# Boot sector that writes and reads sectors of the disk that it was booted from, for ever: a guest
# without an operating system, which QEMU's firmware starts in seconds even with emulation of
# emulation. Each step writes its number to one of 1,024 sectors, reads that sector, and prints a dot
# on the serial port. An error of the disk, or other content, prints E and ends the steps.
    .code16
start:
    xorw %ax, %ax
    movw %ax, %ds
    movw %ax, %es
    movw %ax, %ss
    movw $start, %sp
    movb %dl, drive
step:
    cld
    incw number
    movw number, %ax
    movw $written, %di
    movw $256, %cx
    rep stosw
    andw $0x3ff, %ax
    incw %ax
    movw %ax, sector
    movw $written, buffer
    movw $0x4300, %ax               # write, without verifying
    call disk
    movw $found, buffer
    movw $0x4200, %ax               # read
    call disk
    movw $written, %si
    movw $found, %di
    movw $256, %cx
    repe cmpsw
    jne failed
    movb $'.', %bl
    call print
    jmp step
disk:
    movb drive, %dl
    movw $packet, %si
    int $0x13
    jc failed
    ret
failed:
    movb $'E', %bl
    call print
halt:
    hlt
    jmp halt
print:
    movw $0x3fd, %dx
wait:
    inb %dx, %al
    testb $0x20, %al
    jz wait
    movw $0x3f8, %dx
    movb %bl, %al
    outb %al, %dx
    ret
packet:                             # of the firmware's extended reads and writes
    .byte 16, 0
    .word 1
buffer:
    .word 0, 0
sector:
    .quad 0
drive:
    .byte 0
number:
    .word 0
    .org 510
    .word 0xaa55
    .set written, 0x8000
    .set found, 0x8200
