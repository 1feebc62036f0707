-- A check value for each key, to recognise the key; and which notes are sealed.

create table message_pump.key_check (id text collate "C" primary key, sealed bytea not null);

alter table message_pump.trace add column sealed boolean not null default false;
